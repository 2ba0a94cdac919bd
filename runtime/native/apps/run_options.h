// Command-line options of skipdec-run: those of `skipdec generate` that it supports.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <skipdec/skipdec.hpp>
#include <string>
#include <vector>

#include "command_line.h"

namespace skipdec::apps {

struct RunOptions {
  std::string bundle;
  std::vector<std::string> texts;                    // "-" means stdin
  std::vector<std::vector<std::int64_t>> token_ids;  // further prompts
  bool stream = false, as_json = false, quiet = false, help = false, version = false;
  bool has_max_tokens = false, is_chat = false;
  std::optional<std::int32_t> max_batch_size;
  std::int64_t n = 1;
  std::vector<std::string> stop;
  std::vector<std::int64_t> stop_token_ids;
  Options engine;
  Params params;
};

// Parses token ids that commas separate, e.g. "2,100,50". Throws BadValue.
inline std::vector<std::int64_t> parse_token_ids(const std::string& text) {
  std::vector<std::int64_t> ids;
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t comma = std::min(text.find(',', start), text.size());
    ids.push_back(parse_number<std::int64_t>(text.substr(start, comma - start),
                                             "token ids with commas, e.g. 2,100,50"));
    start = comma + 1;
  }
  return ids;
}

template <class Value>
Value parse_choice(const std::string& text, const char* first, Value value, const char* second,
                   Value other) {
  if (text != first && text != second) throw BadValue(std::string(first) + " or " + second);
  return text == first ? value : other;
}

// Throws BadValue if ``text`` is blank.
inline void require_text(const std::string& text, const char* allowed) {
  if (text.find_first_not_of(" \t\n\r\f\v") == std::string::npos) throw BadValue(allowed);
}

inline std::int32_t parse_count(const std::string& text) {
  const auto count = parse_number<std::int32_t>(text, "an integer from 1");
  if (count < 1) throw BadValue("an integer from 1");
  return count;
}

inline std::vector<Option> running_options(RunOptions& run) {
  Options& engine = run.engine;
  return {
      {"--schedule", "", "TEXT", "full, 2x, 2x:horizon=64, or JSON or its file (bundle's own)",
       [&](const std::string& text) {
         require_text(text, "a schedule, e.g. 2x");
         engine.schedule(text);
       }},
      {"--threads", "", "N", "threads of the process (all cores)",
       [&](const std::string& text) { engine.threads(parse_count(text)); }},
      {"--weights", "", "PLACE", "mapped, or copied: slower to open, faster steps (mapped)",
       [&](const std::string& text) {
         engine.weights(parse_choice(text, "mapped", SKIPDEC_WEIGHTS_MAPPED, "copied",
                                     SKIPDEC_WEIGHTS_COPIED));
       }},
      {"--verify", "", "WHAT", "full: hash all files; graphs: all but weights (full)",
       [&](const std::string& text) {
         engine.verify(
             parse_choice(text, "full", SKIPDEC_VERIFY_FULL, "graphs", SKIPDEC_VERIFY_GRAPHS));
       }},
      {"--max-batch-size", "", "N", "maximum number of completions at once (8, or --n)",
       [&](const std::string& text) { run.max_batch_size = parse_count(text); }},
      {"--kv-memory", "", "SIZE",
       "maximum memory of KV caches, e.g. 2GiB (half of the free memory)",
       [&](const std::string& text) { engine.kv_memory(parse_size(text)); }},
      {"--raw-prompt", "", "", "do not wrap prompts in the template that the model was tuned with",
       [&](const std::string&) { engine.raw_prompts(); }},
      {"--draft", "", "TEXT", "own, own+ends:3, auto, …: the same text, sooner (off)",
       [&](const std::string& text) {
         require_text(text, "drafts, e.g. own, or off");
         engine.draft(text);
       }},
      {"--onnxruntime", "", "PATH",
       "path of libonnxruntime ($SKIPDEC_ONNXRUNTIME, else searched for)",
       [&](const std::string& text) { engine.onnxruntime(text); }},
  };
}

inline std::vector<Option> sampling_options(RunOptions& run) {
  Params& params = run.params;
  const auto integer = [&params](const char* name, const char* help,
                                 Params& (Params::*set)(std::int64_t)) {
    return Option{name, "", "N", help,
                  [&params, set](const std::string& text) { (params.*set)(parse_integer(text)); }};
  };
  const auto number = [&params](const char* name, const char* help,
                                Params& (Params::*set)(double)) {
    return Option{name, "", "X", help,
                  [&params, set](const std::string& text) { (params.*set)(parse_real(text)); }};
  };
  return {
      {"--max-tokens", "", "N", "0: as many as the model can (16; chats: 0)",
       [&](const std::string& text) {
         params.max_tokens(parse_integer(text));
         run.has_max_tokens = true;
       }},
      number("--temperature", "0 is greedy: the most probable token (the bundle's, or 1)",
             &Params::temperature),
      integer("--top-k", "only the k most probable tokens; 0 is off (the bundle's, or 0)",
              &Params::top_k),
      number("--top-p", "only the most probable tokens with this sum (the bundle's, or 1)",
             &Params::top_p),
      number("--min-p", "least probability relative to the best token's (the bundle's, or 0)",
             &Params::min_p),
      number("--repetition-penalty",
             "above 1 makes tokens of prompt and output less likely (the bundle's, or 1)",
             &Params::repetition_penalty),
      number("--presence-penalty", "subtracted once from every token in the output (0)",
             &Params::presence_penalty),
      number("--frequency-penalty", "subtracted once per occurrence in the output (0)",
             &Params::frequency_penalty),
      {"--seed", "", "N", "seed of each prompt's own random numbers",
       [&](const std::string& text) {
         params.seed(parse_number<std::uint64_t>(text, "an integer from 0 to 2**64 - 1"));
       }},
      {"--n", "", "N", "completions per prompt (1)",
       [&](const std::string& text) { params.n(run.n = parse_integer(text)); }},
      integer("--min-tokens", "tokens before anything stops the text (0)", &Params::min_tokens),
      {"--rendered-chat", "", "", "the prompt is a chat that a template has rendered",
       [&](const std::string&) {
         params.rendered_chat();
         run.is_chat = true;
       }},
      {"--keep-special-tokens", "", "", "show special tokens",
       [&](const std::string&) { params.skip_special_tokens(false); }},
      {"--logprobs", "", "N", "log-probabilities of the N best tokens, with --json (off)",
       [&](const std::string& text) {
         const std::int64_t count = parse_integer(text);
         if (count < 0) throw BadValue("an integer from 0");
         params.logprobs(count);
       }},
  };
}

inline std::vector<Option> stopping_options(RunOptions& run) {
  Params& params = run.params;
  return {
      {"--stop", "", "TEXT", "text that ends a completion; may be repeated",
       [&](const std::string& text) {
         run.stop.push_back(text);
         params.stop(run.stop);
       }},
      {"--stop-token-id", "", "N", "id of a token that ends a completion; may be repeated",
       [&](const std::string& text) {
         run.stop_token_ids.push_back(parse_integer(text));
         params.stop_token_ids(run.stop_token_ids);
       }},
      {"--ignore-eos", "", "", "continue after the end of text",
       [&](const std::string&) { params.ignore_eos(); }},
      {"--include-stop-str-in-output", "", "", "include the stop string or token in the text",
       [&](const std::string&) { params.include_stop_str_in_output(); }},
  };
}

inline std::vector<Option> all_options(RunOptions& run) {
  std::vector<Option> options = {
      {"--prompt", "-p", "TEXT|-", "may be repeated; - reads all of stdin",
       [&](const std::string& text) { run.texts.push_back(text); }},
      {"--token-ids", "", "N,N,...", "a prompt as token ids; may be repeated",
       [&](const std::string& text) { run.token_ids.push_back(parse_token_ids(text)); }},
      {"--stream", "", "", "print text as it comes",
       [&](const std::string&) { run.stream = true; }},
      {"--json", "", "", "print results as JSON; with --stream, one line per token",
       [&](const std::string&) { run.as_json = true; }},
      {"--quiet", "-q", "", "report only errors", [&](const std::string&) { run.quiet = true; }},
      {"--help", "-h", "", "show this", [&](const std::string&) { run.help = true; }},
      {"--version", "", "", "show the version", [&](const std::string&) { run.version = true; }},
  };
  for (const auto& more : {running_options(run), sampling_options(run), stopping_options(run)}) {
    options.insert(options.end(), more.begin(), more.end());
  }
  return options;
}

// Parses ``arguments`` into ``run`` and returns the problems.
inline std::vector<std::string> read_options(const std::vector<std::string>& arguments,
                                             RunOptions& run) {
  CommandLine line(all_options(run));
  const std::vector<std::string> others = line.read(arguments);
  std::vector<std::string> problems = line.problems();
  if (run.help || run.version) return {};
  if (others.empty()) problems.emplace_back("BUNDLE is missing; give a bundle's directory");
  if (others.size() > 2) problems.push_back("'" + others[2] + "' is one argument too many");
  if (!others.empty()) run.bundle = others[0];
  const auto rows = static_cast<std::int32_t>(std::clamp<std::int64_t>(run.n, 8, 1024));
  run.engine.max_batch_size(run.max_batch_size.value_or(rows));
  if (run.is_chat && !run.has_max_tokens) run.params.max_tokens(0);  // as in `skipdec generate`
  if (others.size() > 1) run.texts.insert(run.texts.begin(), others[1]);
  if (std::count(run.texts.begin(), run.texts.end(), "-") > 1) {
    problems.emplace_back("give - only once: stdin can be read once");
  }
  const std::size_t num_prompts = run.texts.size() + run.token_ids.size();
  if (run.stream && !run.as_json && (num_prompts > 1 || run.n > 1)) {
    problems.emplace_back("--stream shows one completion as text; add --json for more");
  }
  return problems;
}

inline std::string usage() {
  RunOptions unused;
  return "Usage: skipdec-run [OPTIONS] BUNDLE [TEXT|-]\n\n"
         "Continue prompts with the engines and the exit schedule of a bundle.\n\n" +
         CommandLine(all_options(unused)).help();
}

}  // namespace skipdec::apps
