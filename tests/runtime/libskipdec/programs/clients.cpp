// clients BUNDLE SHARING: two clients of one engine with one row; SHARING is the
// skipdec_prefix_cache for their prompts' prefixes. Prints the number of reused tokens for prompts
// of a, b and a again, then the order in which a1, a2, a3 and b1, sent in that order, started.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <mutex>
#include <numeric>
#include <skipdec/skipdec.hpp>
#include <string>
#include <vector>

namespace {

skipdec::Params greedy(const std::string& client, std::int64_t max_tokens) {
  return skipdec::Params().client(client).temperature(0).ignore_eos().max_tokens(max_tokens);
}

void print_kept_tokens(skipdec::Engine& engine) {
  std::vector<std::int64_t> prompt(40);
  std::iota(prompt.begin(), prompt.end(), 4);
  std::int64_t before = 0;
  for (const char* client : {"a", "b", "a"}) {
    engine.generate(prompt, greedy(client, 2));
    const std::int64_t kept = engine.stats().prefix_tokens;
    std::cout << kept - before << ' ';
    before = kept;
  }
  std::cout << '\n';
}

// Submits all requests while a request of client a runs, so that they wait together.
void print_order(skipdec::Engine& engine) {
  std::mutex mutex;
  std::vector<std::string> begun;
  std::vector<skipdec::Request> waiting;
  const auto send = [&](const std::string& name) {
    const auto note = [&, name](const skipdec::Delta& delta) {
      const std::scoped_lock lock(mutex);
      if (!delta.finish_reason) begun.push_back(name);
      return true;
    };
    waiting.push_back(engine.submit({5, 6, 7}, greedy(name.substr(0, 1), 2).on_delta(note)));
  };
  skipdec::Request first = engine.submit({5, 6}, greedy("a", 3).on_delta([&](const auto&) {
    if (waiting.empty()) {
      for (const char* name : {"a1", "a2", "a3", "b1"}) send(name);
    }
    return true;
  }));
  first.wait();
  for (skipdec::Request& request : waiting) request.wait();
  for (const std::string& name : begun) std::cout << name << ' ';
  std::cout << '\n';
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return 2;
  try {
    const auto sharing = static_cast<skipdec_prefix_cache>(std::atoi(arguments[2]));
    skipdec::Engine engine(arguments[1],
                           skipdec::Options().threads(1).max_batch_size(1).prefix_cache(sharing));
    print_kept_tokens(engine);
    print_order(engine);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
