// generate BUNDLE OPTIONS: runs requests on one engine and prints their results.
//
// OPTIONS is a JSON object of fields of skipdec_options. Each line of stdin is a request: "prompt"
// (a text or token ids), "params" (fields of skipdec_params), "schedule", and its timing: it is
// submitted once the requests before it have given "after" deltas or have ended, and cancelled
// after "patience" deltas of its own. A line with "continuation" is a text to score, with "prompt"
// and "schedule". Prints a JSON array with one object per line of stdin.
#include <condition_variable>
#include <iostream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <skipdec/skipdec.hpp>
#include <string>
#include <vector>

namespace {

using nlohmann::json;

skipdec::Options options_of(const json& given) {
  skipdec::Options options;
  options.threads(given.value("threads", 1));
  options.max_batch_size(given.value("max_batch_size", 8));
  options.kv_memory(given.value("kv_memory", std::uint64_t{0}));
  options.max_waiting(given.value("max_waiting", 10'000));
  options.max_prefill_tokens(given.value("max_prefill_tokens", 2048));
  const json shares = given.value("prefix_cache", json(true));  // or a skipdec_prefix_cache
  options.prefix_cache(shares.is_boolean() ? static_cast<skipdec_prefix_cache>(shares.get<bool>())
                                           : shares.get<skipdec_prefix_cache>());
  options.raw_prompts(given.value("raw_prompts", false));
  options.weights(given.value("copies_weights", false) ? SKIPDEC_WEIGHTS_COPIED
                                                       : SKIPDEC_WEIGHTS_MAPPED);
  options.admission(given.value("admission", "fcfs"));
  options.max_model_len(given.value("max_model_len", 0));
  if (given.contains("schedule")) options.schedule(given["schedule"].get<std::string>());
  if (given.contains("draft")) options.draft(given["draft"].get<std::string>());
  return options;
}

skipdec::Params params_of(const json& request) {
  const json given = request.value("params", json::object());
  skipdec::Params params;
  params.max_tokens(given.value("max_tokens", 16));
  if (given.contains("temperature")) params.temperature(given["temperature"]);
  if (given.contains("top_k")) params.top_k(given["top_k"]);
  if (given.contains("top_p")) params.top_p(given["top_p"]);
  if (given.contains("min_p")) params.min_p(given["min_p"]);
  if (given.contains("repetition_penalty")) params.repetition_penalty(given["repetition_penalty"]);
  params.presence_penalty(given.value("presence_penalty", 0.0));
  params.frequency_penalty(given.value("frequency_penalty", 0.0));
  if (given.contains("seed")) params.seed(given["seed"].get<std::uint64_t>());
  params.n(given.value("n", 1));
  params.min_tokens(given.value("min_tokens", 0));
  params.stop(given.value("stop", std::vector<std::string>()));
  params.stop_token_ids(given.value("stop_token_ids", std::vector<std::int64_t>()));
  params.ignore_eos(given.value("ignore_eos", false));
  params.include_stop_str_in_output(given.value("include_stop_str_in_output", false));
  params.skip_special_tokens(given.value("skip_special_tokens", true));
  if (given.contains("logprobs")) params.logprobs(given["logprobs"].get<std::int64_t>());
  if (given.contains("draft")) params.draft(given["draft"].get<std::string>());
  if (given.contains("client")) params.client(given["client"].get<std::string>());
  if (request.contains("schedule")) params.schedule(request["schedule"].get<std::string>());
  return params;
}

// Counts deltas in total and per request, and records which requests have ended.
class Progress {
 public:
  void add(std::size_t request, const skipdec::Delta& delta, std::int64_t completions) {
    const std::scoped_lock lock(mutex_);
    ++total_;
    ++seen_[request];
    texts_[request][delta.index] += delta.text;
    if (!delta.token_ids.empty()) marks_[request][delta.index].push_back(delta.drafted);
    if (delta.finish_reason && ++ended_[request] == completions) --open_;
    changed_.notify_all();
  }
  void open() {
    const std::scoped_lock lock(mutex_);
    ++open_;
  }
  void wait_for(std::int64_t total) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return total_ >= total || open_ == 0; });
  }
  std::int64_t seen(std::size_t request) {
    const std::scoped_lock lock(mutex_);
    return seen_[request];
  }
  std::string text(std::size_t request, std::int64_t completion) {
    const std::scoped_lock lock(mutex_);
    return texts_[request][completion];
  }
  std::vector<bool> marks(std::size_t request, std::int64_t completion) {
    const std::scoped_lock lock(mutex_);
    return marks_[request][completion];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t total_ = 0, open_ = 0;
  std::map<std::size_t, std::int64_t> seen_, ended_;
  std::map<std::size_t, std::map<std::int64_t, std::string>> texts_;
  std::map<std::size_t, std::map<std::int64_t, std::vector<bool>>> marks_;  // of drafted tokens
};

json shown(const skipdec::Completion& completion, const std::string& streamed,
           const std::vector<bool>& marks) {
  json logprobs = json::array();
  for (const auto& token : completion.logprobs) {
    json entries = json::array();
    for (const skipdec::Logprob& each : token) {
      entries.push_back({each.token_id, each.logprob, each.rank});
    }
    logprobs.push_back(entries);
  }
  json result{{"text", completion.text},
              {"streamed", streamed},
              {"token_ids", completion.token_ids},
              {"layers", completion.layers},
              {"finish_reason", completion.finish_reason.value_or("")},
              {"logprobs", logprobs},
              {"drafts", {completion.passes, completion.drafted, completion.accepted}},
              {"drafted", marks}};
  if (completion.stop_reason) result["stop_reason"] = *completion.stop_reason;
  if (completion.stop_token_id) result["stop_reason"] = *completion.stop_token_id;
  return result;
}

skipdec::Request submit(skipdec::Engine& engine, const json& prompt,
                        const skipdec::Params& params) {
  if (prompt.is_string()) return engine.submit(prompt.get<std::string>(), params);
  return engine.submit(prompt.get<std::vector<std::int64_t>>(), params);
}

json score(skipdec::Engine& engine, const json& request) {
  const auto prompt = request["prompt"].get<std::vector<std::int64_t>>();
  const auto continuation = request["continuation"].get<std::vector<std::int64_t>>();
  const skipdec::Score score =
      engine.score(prompt, continuation, request["schedule"].get<std::string>());
  return {{"token_ids", score.token_ids}, {"logprobs", score.logprobs}, {"layers", score.layers}};
}

json run(skipdec::Engine& engine, const std::vector<json>& lines) {
  Progress progress;
  json results = json::array();
  std::vector<std::optional<skipdec::Request>> requests;
  for (std::size_t index = 0; index < lines.size(); ++index) {
    const json& line = lines[index];
    results.push_back(nullptr);
    requests.emplace_back();
    progress.wait_for(line.value("after", std::int64_t{0}));
    try {
      if (line.contains("continuation")) {
        results[index] = score(engine, line);
        continue;
      }
      skipdec::Params params = params_of(line);
      const std::int64_t patience = line.value("patience", INT64_MAX);
      params.on_delta([&, index, patience, n = params.num_completions()](const auto& delta) {
        progress.add(index, delta, n);
        return progress.seen(index) <= patience;
      });
      progress.open();
      requests[index] = submit(engine, line["prompt"], params);
    } catch (const skipdec::Error& error) {
      results[index] = {{"error", error.what()}, {"code", skipdec_status_name(error.status())}};
    }
  }
  for (std::size_t index = 0; index < requests.size(); ++index) {
    if (!requests[index]) continue;
    requests[index]->wait();
    json completions = json::array();
    std::int64_t place = 0;
    for (const skipdec::Completion& each : requests[index]->completions()) {
      completions.push_back(shown(each, progress.text(index, place), progress.marks(index, place)));
      ++place;
    }
    results[index] = {{"outputs", completions},
                      {"prompt_token_ids", requests[index]->prompt_token_ids()},
                      {"schedule", requests[index]->schedule()}};
  }
  return results;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return std::cerr << "usage: generate BUNDLE OPTIONS\n", 2;
  try {
    skipdec::Engine engine(arguments[1], options_of(json::parse(arguments[2])));
    std::vector<json> lines;
    for (std::string line; std::getline(std::cin, line);) lines.push_back(json::parse(line));
    std::cout << run(engine, lines).dump() << '\n';
  } catch (const skipdec::Error& error) {
    std::cerr << skipdec_status_name(error.status()) << ": " << error.what() << '\n';
    return 1;
  }
  return 0;
}
