// run_engines BUNDLE ROWS TOKENS mapped|copied OUTPUT: calls every engine of a bundle once on fixed
// inputs and writes the resulting hidden states, caches and logits, byte for byte.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>

#include "bundle/bundle.h"
#include "engine_call.h"
#include "sessions/session.h"

namespace {

using namespace skipdec::runtime;

void run(const std::string& path, std::int64_t rows, std::int64_t tokens, WeightsPlace weights,
         const std::string& output) {
  const auto bundle = Bundle::open(path, Verify::kFull);
  const Manifest& manifest = bundle->manifest();
  SessionOptions options;
  options.weights = weights;
  const auto backend = Backend::open(bundle, options);
  std::printf("%s\n", backend->description().c_str());
  std::ofstream file(output, std::ios::binary);
  EngineCall call(manifest, rows, tokens);
  backend->load(manifest.embed)->bind(call.tensors())->run();
  call.write(file, Role::kHiddenStates);
  std::int64_t layer = 0;
  for (const EngineSpec& spec : manifest.layers) {
    backend->load(spec)->bind(call.tensors(layer++))->run();
    for (const Role role : {Role::kHiddenStates, Role::kPastKey, Role::kPastValue})
      call.write(file, role);
  }
  backend->load(manifest.head)->bind(call.tensors(layer))->run();
  call.write(file, Role::kLogits);
  bundle->await_weights();
}

}  // namespace

int main(int count, char** words) {
  try {
    if (count != 6) throw std::invalid_argument("BUNDLE ROWS TOKENS mapped|copied OUTPUT");
    const bool is_copied = std::string(words[4]) == "copied";
    run(words[1], std::stoll(words[2]), std::stoll(words[3]),
        is_copied ? WeightsPlace::kCopied : WeightsPlace::kMapped, words[5]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
