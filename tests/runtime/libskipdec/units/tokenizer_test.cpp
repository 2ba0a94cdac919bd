// Tests Tokenizer with a file of one token per byte; test_tokenizer_parity.py tests parity with
// Python.

#include "tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <iomanip>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tokenizer/file/unsupported.h"
#include "tokenizer/text/byte_alphabet.h"

namespace skipdec::runtime {
namespace {

using nlohmann::json;
using TokenIds = std::vector<std::int64_t>;

constexpr std::int64_t kSpecial = 256, kPlain = 257, kEnd = 258;

json added(std::int64_t id, const std::string& content, bool special) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

// Token i is byte i. They are followed by <s>, which is special and precedes every text, by <sep>
// and by "he".
json document() {
  json vocabulary;
  for (int byte = 0; byte < 256; ++byte)
    vocabulary[std::string(stand_in(static_cast<std::uint8_t>(byte)))] = byte;
  vocabulary["<s>"] = kSpecial;
  vocabulary["<sep>"] = kPlain;
  vocabulary["he"] = kEnd;
  const json byte_level{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}};
  const json single = {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
                       {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}};
  const json special{{"id", "<s>"}, {"ids", {kSpecial}}, {"tokens", {"<s>"}}};
  return {{"version", "1.0"},
          {"added_tokens", {added(kSpecial, "<s>", true), added(kPlain, "<sep>", false)}},
          {"pre_tokenizer", byte_level},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single", single},
            {"pair", json::array()},
            {"special_tokens", {{"<s>", special}}}}},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"vocab", vocabulary},
            {"merges", json::array({json::array({"h", "e"})})}}}};
}

std::unique_ptr<Tokenizer> tokenizer_of(const json& file,
                                        std::optional<std::string> prompt_template = {}) {
  return Tokenizer::parse(file.dump(), "tokenizer.json", std::move(prompt_template));
}

TEST(Tokenizer, GivesInvalidIdsAnEmptyText) {
  const auto tokenizer = tokenizer_of(document());
  for (const std::int64_t none : {std::int64_t{-1}, std::int64_t{259}, INT64_MAX, INT64_MIN}) {
    EXPECT_EQ(tokenizer->texts().of(none), "");
    EXPECT_FALSE(tokenizer->texts().is_special(none));
  }
}

TEST(Tokenizer, PromisesNoTokensIfASpaceMayVanish) {
  json file = document();
  EXPECT_EQ(tokenizer_of(file)->least_tokens("12345 6"), 2);  // <sep> has five bytes
  file["added_tokens"][1]["lstrip"] = true;
  EXPECT_EQ(tokenizer_of(file)->least_tokens("12345 6"), 0);
}

TEST(Tokenizer, PromisesFewerTokensIfTextMayBecomeShorter) {
  json file = document();
  file["normalizer"] = {{"type", "NFC"}};
  EXPECT_EQ(tokenizer_of(file)->least_tokens(std::string(21, 'x')), 2);  // 4 times 5 bytes
  file["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", "xx"}}}, {"content", ""}};
  EXPECT_EQ(tokenizer_of(file)->least_tokens("12345 6"), 0);
}

// Like Llama 2's: "▁" replaces blanks and precedes a text, where decoding omits it; byte fallback.
json character_document() {
  json file = document(), vocabulary{{"<s>", 256}, {"\u2581", 257}, {"a", 258}, {"<unk>", 259}};
  for (int byte = 0; byte < 256; ++byte) {
    std::ostringstream token;
    token << "<0x" << std::uppercase << std::hex << std::setw(2) << std::setfill('0') << byte
          << '>';
    vocabulary[token.str()] = byte;
  }
  file["added_tokens"].erase(1);
  file["model"] = {{"type", "BPE"},         {"vocab", vocabulary}, {"merges", json::array()},
                   {"byte_fallback", true}, {"fuse_unk", true},    {"unk_token", "<unk>"}};
  file["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "first"}};
  const json blank{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}};
  const json strip{{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}};
  file["decoder"] = {{"type", "Sequence"},
                     {"decoders", {blank, {{"type", "ByteFallback"}}, {{"type", "Fuse"}}, strip}}};
  return file;
}

TEST(Tokenizer, EncodesCharactersWithoutATokenAsBytes) {
  const auto tokenizer = tokenizer_of(character_document());
  EXPECT_EQ(tokenizer->encode("a é"), (TokenIds{kSpecial, 257, 258, 257, 0xC3, 0xA9}));
  EXPECT_EQ(tokenizer->encode("a<s>a"), (TokenIds{kSpecial, 257, 258, kSpecial, 258}));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("a é")), "a é");
  EXPECT_EQ(tokenizer->least_tokens("123456789"), 2);  // <0x00> has six bytes
}

TEST(Tokenizer, ServesSeveralThreadsAtOnce) {
  const auto tokenizer = tokenizer_of(document());
  const std::string text(2000, 'h');
  const TokenIds expected = tokenizer->encode(text + "he");
  std::vector<int> equal(4);
  std::vector<std::thread> threads;
  threads.reserve(equal.size());
  for (int& result : equal)
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round)
        result += tokenizer->encode(text + "he") == expected &&
                  tokenizer->decode(expected) == text + "he";
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::accumulate(equal.begin(), equal.end(), 0), 80);
}

// The time to find added tokens grows with the longest one.
TEST(Tokenizer, RefusesAddedTokensAboveTheMaximumLength) {
  json longest = document(), longer = document();
  longest["added_tokens"].push_back(added(259, std::string(1024, 'a'), false));
  longer["added_tokens"].push_back(added(259, std::string(1025, 'a'), false));
  EXPECT_EQ(tokenizer_of(longest)->encode(std::string(1024, 'a')), (TokenIds{kSpecial, 259}));
  EXPECT_THROW(tokenizer_of(longer), UnsupportedTokenizer);
}

}  // namespace
}  // namespace skipdec::runtime
