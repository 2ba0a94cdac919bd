// Writes completions as JSON in the format of `skipdec generate --json`.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <skipdec/skipdec.hpp>
#include <string>
#include <vector>

namespace skipdec::apps {

using Json = nlohmann::ordered_json;

inline Json json_of(const std::optional<std::string>& text) {
  return text ? Json(*text) : Json(nullptr);
}

// ``engine`` decodes the candidates' texts if it has a tokenizer.
inline Json json_of(const Logprob& entry, const Engine& engine, bool has_tokenizer) {
  return {{"token_id", entry.token_id},
          {"logprob", entry.logprob},
          {"rank", entry.rank},
          {"decoded_token",
           has_tokenizer ? Json(engine.decode({entry.token_id}, false)) : Json(nullptr)}};
}

inline Json json_of(const Completion& completion, const Engine& engine, bool has_tokenizer,
                    bool has_drafts) {
  Json fields = {{"text", completion.text},
                 {"token_ids", completion.token_ids},
                 {"finish_reason", json_of(completion.finish_reason)},
                 {"layers_per_token", completion.layers}};
  if (completion.stop_reason) fields["stop_reason"] = *completion.stop_reason;
  if (completion.stop_token_id) fields["stop_reason"] = *completion.stop_token_id;
  if (has_drafts && completion.token_ids.size() > 1) {
    fields["drafts"] = {{"passes", completion.passes},
                        {"drafted", completion.drafted},
                        {"accepted", completion.accepted}};
  }
  if (completion.logprobs.empty()) return fields;
  double total = 0;
  Json tokens = Json::array();
  for (const std::vector<Logprob>& candidates : completion.logprobs) {
    total += candidates.front().logprob;
    Json token = Json::array();
    for (const Logprob& entry : candidates) token.push_back(json_of(entry, engine, has_tokenizer));
    tokens.push_back(token);
  }
  fields["cumulative_logprob"] = total;
  fields["logprobs"] = tokens;
  return fields;
}

// Maps each number of layers that tokens ran to ranges of these layers: {"3": [[0, 0], [4, 5]]}.
inline Json layer_ranges(const Request& request, const std::vector<Completion>& completions) {
  std::set<std::int64_t> counts;
  for (const Completion& each : completions) counts.insert(each.layers.begin(), each.layers.end());
  Json found = Json::object();
  for (const std::int64_t count : counts) {
    Json ranges = Json::array();
    for (const std::int64_t layer : request.layers(count)) {
      if (!ranges.empty() && ranges.back()[1] == layer - 1) {
        ranges.back()[1] = layer;
      } else {
        ranges.push_back(Json::array({layer, layer}));
      }
    }
    found[std::to_string(count)] = ranges;
  }
  return found;
}

// Puts a single completion's fields at the top level, and several completions into the list
// "outputs".
inline Json json_of(std::size_t id, const Request& request, const Engine& engine,
                    bool has_tokenizer, bool has_drafts) {
  Json line = {{"id", id}};
  const std::vector<Completion> completions = request.completions();
  if (completions.size() == 1) {
    line.update(json_of(completions.front(), engine, has_tokenizer, has_drafts));
  }
  for (std::size_t index = 0; completions.size() > 1 && index < completions.size(); ++index) {
    Json one = {{"index", index}};
    one.update(json_of(completions[index], engine, has_tokenizer, has_drafts));
    line["outputs"].push_back(one);
  }
  line["layer_ranges"] = layer_ranges(request, completions);
  return line;
}

}  // namespace skipdec::apps
