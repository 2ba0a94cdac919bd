// allocations BUNDLE: counts allocations by this program's own code, not by ONNX Runtime, while
// every engine of a bundle runs a hundred times.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <vector>

#include "bundle/bundle.h"
#include "engine_call.h"
#include "sessions/session.h"

extern "C" const char __executable_start, etext;  // from the linker: bounds of the code

namespace {

std::atomic<bool> is_counting{false};
std::atomic<long> count{0};

bool is_ours(const void* caller) { return caller >= &__executable_start && caller < &etext; }

void* allocated(std::size_t size, const void* caller) {
  if (is_counting && is_ours(caller)) ++count;
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void run(const char* path) {
  using namespace skipdec::runtime;
  const auto bundle = Bundle::open(path, Verify::kGraphs);
  const auto backend = Backend::open(bundle, {});
  EngineCall call(bundle->manifest(), 2, 1);
  std::vector<std::unique_ptr<Session>> sessions;
  sessions.push_back(backend->load(bundle->manifest().embed));
  for (const EngineSpec& layer : bundle->manifest().layers)
    sessions.push_back(backend->load(layer));
  sessions.push_back(backend->load(bundle->manifest().head));
  std::vector<std::unique_ptr<Binding>> bindings;
  bindings.reserve(sessions.size());
  for (const auto& session : sessions) bindings.push_back(session->bind(call.tensors()));
  for (const auto& binding : bindings) binding->run();  // allocates what sessions keep
  is_counting = true;
  for (int i = 0; i < 100; ++i)
    for (const auto& binding : bindings) binding->run();
  is_counting = false;
}

}  // namespace

// These are not inlined, because the return address identifies the caller.
__attribute__((noinline)) void* operator new(std::size_t size) {
  return allocated(size, __builtin_return_address(0));
}
__attribute__((noinline)) void* operator new[](std::size_t size) {
  return allocated(size, __builtin_return_address(0));
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete[](void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
__attribute__((noinline)) void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

int main(int, char** words) {
  try {
    is_counting = true;
    const std::vector<int> counted(1000);
    is_counting = false;
    if (count != 1 || counted.size() != 1000) throw std::logic_error("nothing is counted");
    count = 0;
    run(words[1]);
    std::printf("%ld\n", count.load());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
