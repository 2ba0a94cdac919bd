// lifetimes BUNDLE COUNT: opens and closes a bundle COUNT times, each time with a request that
// finishes, one that closing ends and one that is released early. Before that, two engines run side
// by side. Prints the resident memory without files, in KiB, after a tenth of the times and at the
// end.
//
// lifetimes BUNDLE exit: returns from main while requests run. A static object that outlives ONNX
// Runtime's prints how the last one ends.
#include <fstream>
#include <iostream>
#include <optional>
#include <skipdec/skipdec.hpp>
#include <string>
#include <thread>
#include <vector>

namespace {

const std::vector<std::int64_t> kPrompt{5, 6, 7};

skipdec::Engine open(const char* bundle) {
  return skipdec::Engine(bundle, skipdec::Options().threads(1).kv_memory(1 << 20));
}

skipdec::Params greedy(std::int64_t max_tokens) {
  return skipdec::Params().temperature(0).ignore_eos().max_tokens(max_tokens);
}

void run_side_by_side(const char* bundle) {
  skipdec::Engine one = open(bundle);
  skipdec::Engine other = open(bundle);
  std::vector<std::int64_t> tokens;
  std::thread beside([&] { tokens = one.generate(kPrompt, greedy(20))[0].token_ids; });
  const auto same = other.generate(kPrompt, greedy(20))[0].token_ids;
  beside.join();
  if (tokens != same) throw std::runtime_error("two engines write different tokens");
}

// Prints the resident memory without files, in KiB.
void print_memory() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word && word != "RssAnon:") {
  }
  status >> word;
  std::cout << word << '\n';
}

void live(const char* bundle) {
  skipdec::Engine engine = open(bundle);
  engine.generate(kPrompt, greedy(3));
  const skipdec::Request cut_off = engine.submit(kPrompt, greedy(50));
  {
    const skipdec::Request released = engine.submit(kPrompt, greedy(50));
  }
  engine.close();
  if (skipdec_request_wait(cut_off.get(), 0) == SKIPDEC_TIMEOUT) {
    throw std::runtime_error("a request still runs");
  }
}

struct AtExit {
  std::optional<skipdec::Engine> engine;
  std::vector<skipdec::Request> requests;

  ~AtExit() {
    if (requests.empty()) return;
    try {
      requests.back().wait();
      std::cout << requests.back().completion().finish_reason.value() << '\n';
    } catch (const skipdec::Error& error) {
      std::cout << error.what() << '\n';
    }
  }
} at_exit;

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return 2;
  try {
    if (std::string(arguments[2]) == "exit") {
      at_exit.engine = open(arguments[1]);
      at_exit.requests = at_exit.engine->submit_many(std::vector(200, kPrompt), greedy(50));
      at_exit.requests.front().next();
      return 0;
    }
    const int times = std::stoi(arguments[2]);
    run_side_by_side(arguments[1]);
    for (int time = 1; time <= times; ++time) {
      live(arguments[1]);
      if (time == times / 10 || time == times) print_memory();
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
