// Fuzzes tokenizer.json files; encodes texts with those that parse.

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "errors.h"
#include "fuzzing.h"
#include "tokenizer/incremental_decoder.h"
#include "tokenizer/tokenizer.h"

namespace {

using skipdec::runtime::Error;
using skipdec::runtime::IncrementalDecoder;
using skipdec::runtime::Tokenizer;

constexpr std::string_view kText =
    "</s>It's 12 \xC2\xBD\xE6\x9D\xB1\xE4\xBA\xAC,  <sep>\n\t word [left] x ";

// Traps if the two ways of decoding differ, or if a text has fewer tokens than `least_tokens` says.
void use(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<std::int64_t> token_ids = tokenizer.encode(text);
  IncrementalDecoder decoder(tokenizer, false);
  std::string pieces;
  for (const std::int64_t token_id : token_ids) pieces += decoder.push(token_id);
  pieces += decoder.flush();
  if (pieces != tokenizer.decode(token_ids, false)) __builtin_trap();
  if (tokenizer.least_tokens(text) > static_cast<std::int64_t>(token_ids.size())) __builtin_trap();
  std::vector<std::int64_t> all(1024);  // IDs, some of which are not tokens
  std::iota(all.begin(), all.end(), -1);
  tokenizer.decode(all, false);
}

}  // namespace

extern "C" int fuzz_tokenizer(const std::uint8_t* data, std::size_t size) {
  const std::string_view content(reinterpret_cast<const char*>(data), size);
  try {
    const auto tokenizer = Tokenizer::parse(content, "tokenizer.json", "{prompt}");
    use(*tokenizer, kText);
    use(*tokenizer, content.substr(0, 4096));
  } catch (const Error& error) {
    if (std::string_view(error.what()).empty()) __builtin_trap();
  }
  return 0;
}
