// Runs StopChecker on cases from standard input, for comparison with Python's.
//
//   stop TOKENIZER_JSON
//
// A case is a line of JSON: the arguments of StopChecker, "tokens", "abort" and "fail", which are
// null, or the reason to abort or fail with after the tokens; "tokenizer": whether there is one.
// Answers with a line of JSON: "pieces", "text", "finish_reason", "stop_reason".

#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "tokenizer/tokenizer.h"
#include "tokens/stopping.h"

namespace skipdec::runtime {
namespace {

using nlohmann::json;

SamplingParams params_of(const json& fields) {
  SamplingParams params;
  params.stop = fields["stop"].get<std::vector<std::string>>();
  params.stop_token_ids = fields["stop_token_ids"].get<std::vector<std::int64_t>>();
  params.ignore_eos = fields["ignore_eos"];
  params.include_stop_str_in_output = fields["include_stop_str_in_output"];
  params.skip_special_tokens = fields["skip_special_tokens"];
  params.min_tokens = fields["min_tokens"];
  return params;
}

json written(const StopReason& reason) {
  if (const auto* token_id = std::get_if<std::int64_t>(&reason)) return *token_id;
  if (const auto* text = std::get_if<std::string>(&reason)) return *text;
  return nullptr;
}

json run_case(const json& fields, const Tokenizer& tokenizer) {
  StopChecker checker(params_of(fields), fields["max_tokens"],
                      fields["end_token_ids"].get<std::vector<std::int64_t>>(),
                      fields["tokenizer"] ? &tokenizer : nullptr);
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
    std::cout << run_case(json::parse(line), *tokenizer).dump() << '\n';
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
