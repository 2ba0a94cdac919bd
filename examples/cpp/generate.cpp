// Completes a prompt twice: streamed token by token, and as two sampled texts at once.
//
//   generate opt-1.3b-int8 "The capital of France is" 4x
#include <cstdlib>
#include <exception>
#include <iostream>
#include <skipdec/skipdec.hpp>
#include <string>

namespace {

void run(const std::string& bundle, const std::string& prompt, const std::string& schedule) {
  skipdec::Engine engine(bundle, skipdec::Options().schedule(schedule));
  const skipdec::Info info = engine.info();
  std::cerr << info.model << ", " << info.num_layers << " layers, " << info.description << '\n';

  auto params = skipdec::Params().max_tokens(32).temperature(0);
  skipdec::Request request = engine.submit(prompt, params);
  std::int64_t layers = 0, tokens = 0;
  for (const skipdec::Delta& delta : request) {
    std::cout << delta.text << std::flush;
    layers += delta.layers * static_cast<std::int64_t>(delta.token_ids.size());
    tokens += static_cast<std::int64_t>(delta.token_ids.size());
  }
  std::cout << '\n';
  std::cerr << layers << " layers for " << tokens << " tokens, at " << request.schedule() << '\n';

  params.temperature(0.8).top_p(0.95).seed(7).n(2);
  for (const skipdec::Completion& completion : engine.generate(prompt, params)) {
    std::cout << "sampled: " << completion.text << '\n';
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 4) throw skipdec::Error(SKIPDEC_USAGE, "usage: generate BUNDLE PROMPT SCHEDULE");
  run(argv[1], argv[2], argv[3]);
  return EXIT_SUCCESS;
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << '\n';
  return EXIT_FAILURE;
}
