// skipdec-calls BUNDLE [THREADS [MAX_BATCH_SIZE [DRAFT]]]: worker process of `skipdec bench
// --runtime native`.
//
// Reads one call per line, e.g. {"client": "a", "prompts": [[5, 6]], "temperature": 0.7, "seed": 3,
// "max_tokens": 64, "ignore_eos": true, "schedule": "2x"}, runs its prompts together, and answers
// with one line:
//   {"wall_seconds": 1.5, "decode_seconds": 1.3, "sampling_seconds": 0.1, "draft_seconds": 0.2,
//    "outputs": [{"token_ids": […], "finish_reason": "length", "layers": […],
//                 "token_seconds": […], "drafts": [9, 36, 30]}]}
// or {"error": "…"}, also when a text ends with an error; "drafts" are the numbers of passes,
// drafted tokens and accepted ones. The first line of output describes the backend:
// {"description": "…"}.
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <skipdec/skipdec.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using nlohmann::json;

// Drafts learn from earlier calls of the same client.
json run(skipdec::Engine& engine, const json& call) {
  skipdec::Params params;
  params.client(call.at("client").get<std::string>())
      .temperature(call.at("temperature").get<double>())
      .seed(call.at("seed").get<std::uint64_t>())
      .top_k(0)
      .top_p(1)
      .min_p(0)
      .repetition_penalty(1)
      .max_tokens(call.at("max_tokens").get<std::int64_t>());
  if (call.at("ignore_eos").get<bool>()) params.ignore_eos();
  if (call.contains("schedule")) params.schedule(call["schedule"].get<std::string>());
  const auto prompts = call.at("prompts").get<std::vector<std::vector<std::int64_t>>>();
  const skipdec::Stats before = engine.stats();
  const auto start = std::chrono::steady_clock::now();
  std::vector<skipdec::Request> requests = engine.submit_many(prompts, params);
  for (skipdec::Request& request : requests) request.wait();
  const skipdec::Seconds wall = std::chrono::steady_clock::now() - start;
  const skipdec::Stats after = engine.stats();
  json outputs = json::array();
  for (const skipdec::Request& request : requests) {
    const skipdec::Completion completion = request.completion();
    if (completion.finish_reason == "error") throw std::runtime_error(*completion.stop_reason);
    outputs.push_back({{"token_ids", completion.token_ids},
                       {"finish_reason", *completion.finish_reason},
                       {"layers", completion.layers},
                       {"token_seconds", completion.token_seconds},
                       {"drafts", {completion.passes, completion.drafted, completion.accepted}}});
  }
  return {{"wall_seconds", wall.count()},
          {"decode_seconds", after.decode_seconds - before.decode_seconds},
          {"sampling_seconds", after.sampling_seconds - before.sampling_seconds},
          {"draft_seconds", after.draft_seconds - before.draft_seconds},
          {"outputs", outputs}};
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2 || count > 5) {
    std::cerr << "usage: skipdec-calls BUNDLE [THREADS [MAX_BATCH_SIZE [DRAFT]]]\n";
    return 2;
  }
  try {
    skipdec::Options options;
    if (count > 2) options.threads(std::stoi(arguments[2]));
    if (count > 3) options.max_batch_size(std::stoi(arguments[3]));
    const bool has_drafts = count > 4;
    if (has_drafts) options.draft(arguments[4]);
    // Only clients with their own prefixes have their own n-grams.
    options.prefix_cache(has_drafts ? SKIPDEC_PREFIX_CACHE_CLIENT : SKIPDEC_PREFIX_CACHE_OFF);
    skipdec::Engine engine(arguments[1], options);
    const json opened{{"description", engine.info().description}};
    std::cout << opened.dump() << '\n' << std::flush;
    for (std::string line; std::getline(std::cin, line);) {
      json answer;
      try {
        answer = run(engine, json::parse(line));
      } catch (const std::exception& error) {
        answer = {{"error", error.what()}};
      }
      std::cout << answer.dump() << '\n' << std::flush;
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
