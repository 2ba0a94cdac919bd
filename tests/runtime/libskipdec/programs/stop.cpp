// Runs StopChecker on cases from standard input, for comparison with Python's.
//
//   stop TOKENIZER_JSON
//
// A case is a line of JSON: the fields of StopRules, "tokens", "abort" and "fail", which are null,
// or the reason to abort or fail with after the tokens; "tokenizer": false for none. Answers with a
// line of JSON: "pieces", "text", "finish_reason", "stop_reason", or "error".

#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "errors.h"
#include "tokenizer/tokenizer.h"
#include "tokens/stopping.h"

namespace skipdec::runtime {
namespace {

using nlohmann::json;

StopRules rules_of(const json& fields) {
  StopRules rules;
  rules.stop = fields["stop"].get<std::vector<std::string>>();
  rules.stop_token_ids = fields["stop_token_ids"].get<std::vector<std::int64_t>>();
  rules.ignore_eos = fields["ignore_eos"];
  rules.include_stop_str_in_output = fields["include_stop_str_in_output"];
  rules.skip_special_tokens = fields["skip_special_tokens"];
  rules.min_tokens = fields["min_tokens"];
  rules.max_tokens = fields["max_tokens"];
  rules.end_token_ids = fields["end_token_ids"].get<std::vector<std::int64_t>>();
  return rules;
}

json written(const StopReason& reason) {
  if (const auto* token_id = std::get_if<std::int64_t>(&reason)) return *token_id;
  if (const auto* text = std::get_if<std::string>(&reason)) return *text;
  return nullptr;
}

json followed(const json& fields, const Tokenizer& tokenizer) {
  StopChecker checker(rules_of(fields), fields["tokenizer"] ? &tokenizer : nullptr);
  json pieces = json::array();
  for (const std::int64_t token_id : fields["tokens"]) {
    pieces.push_back(checker.push(token_id));
    if (checker.finish_reason()) break;
  }
  if (!fields["abort"].is_null())
    pieces.push_back(checker.abort(fields["abort"].get<std::string>()));
  if (!fields["fail"].is_null()) checker.fail(fields["fail"].get<std::string>());
  const auto finish = checker.finish_reason();
  return {{"pieces", pieces},
          {"text", checker.text()},
          {"finish_reason", finish ? json(name_of(*finish)) : json()},
          {"stop_reason", written(checker.stop_reason())}};
}

int run(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::string document{std::istreambuf_iterator<char>(file), {}};
  const auto tokenizer = Tokenizer::parse(document, path, std::nullopt);
  for (std::string line; std::getline(std::cin, line);) {
    json answer;
    try {
      answer = followed(json::parse(line), *tokenizer);
    } catch (const Error& error) {
      answer = {{"error", error.what()}};
    }
    std::cout << answer.dump() << '\n';
  }
  return 0;
}

}  // namespace
}  // namespace skipdec::runtime

int main(int count, char** arguments) {
  try {
    return count == 2 ? skipdec::runtime::run(arguments[1]) : 2;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
