// Tests Tokenizer with a file of one token per byte; test_tokenizer_parity.py tests parity with
// Python.

#include "tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "errors.h"
#include "tokenizer/file/unsupported.h"
#include "tokenizer/incremental_decoder.h"
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

TEST(Tokenizer, PutsAPromptIntoItsTemplate) {
  const auto tokenizer = tokenizer_of(document(), "a{prompt}<sep>");
  EXPECT_EQ(tokenizer->encode_prompt("{he}"), (TokenIds{kSpecial, 'a', '{', kEnd, '}', kPlain}));
  EXPECT_EQ(tokenizer->encode_prompt(""), (TokenIds{kSpecial, 'a', kPlain}));
  EXPECT_EQ(tokenizer_of(document())->encode_prompt("he"), (TokenIds{kSpecial, kEnd}));
}

TEST(Tokenizer, KnowsEachTokenAlone) {
  const auto tokenizer = tokenizer_of(document());
  EXPECT_EQ(tokenizer->vocab_size(), 259U);
  EXPECT_EQ(tokenizer->token_text(kSpecial), "<s>");
  EXPECT_EQ(tokenizer->token_text(0xC3), "\xEF\xBF\xBD");
  EXPECT_EQ(tokenizer->token_bytes(0xC3), "\xC3");
  EXPECT_TRUE(tokenizer->is_special(kSpecial));
  EXPECT_FALSE(tokenizer->is_special(kPlain));
}

TEST(Tokenizer, KnowsWhatIsNoToken) {
  const auto tokenizer = tokenizer_of(document());
  for (const std::int64_t none : {std::int64_t{-1}, std::int64_t{259}, INT64_MAX, INT64_MIN}) {
    EXPECT_EQ(tokenizer->token_bytes(none), "");
    EXPECT_FALSE(tokenizer->is_special(none));
  }
}

TEST(Tokenizer, LeavesSpecialTokensOutIfAsked) {
  const auto tokenizer = tokenizer_of(document());
  const TokenIds token_ids = {kSpecial, kEnd, 999, kSpecial, kPlain};
  EXPECT_EQ(tokenizer->decode(token_ids), "he<sep>");
  EXPECT_EQ(tokenizer->decode(token_ids, false), "<s>he<s><sep>");
}

TEST(Tokenizer, PromisesNoTokensWhereASpaceMayVanish) {
  json file = document();
  EXPECT_EQ(tokenizer_of(file)->least_tokens("12345 6"), 2);  // <sep> has five bytes
  file["added_tokens"][1]["lstrip"] = true;
  EXPECT_EQ(tokenizer_of(file)->least_tokens("12345 6"), 0);
}

TEST(Tokenizer, TellsAnotherKindFromABrokenFile) {
  json other = document(), broken = document();
  other["decoder"]["type"] = "Metaspace";
  broken["model"]["vocab"]["he"] = -1;
  EXPECT_THROW(tokenizer_of(other), UnsupportedTokenizer);
  try {
    tokenizer_of(broken);
    FAIL();
  } catch (const UnsupportedTokenizer&) {
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::kBundle);
  }
}

TEST(Tokenizer, ServesThreadsAtOnce) {
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

TEST(IncrementalDecoder, HoldsACharacterUntilItIsWhole) {
  const auto tokenizer = tokenizer_of(document());
  IncrementalDecoder decoder(*tokenizer);
  EXPECT_EQ(decoder.push(0xE2), "");
  EXPECT_EQ(decoder.push(0x82), "");
  EXPECT_EQ(decoder.push(kSpecial), "");
  EXPECT_EQ(decoder.push(0xAC), "€");
  EXPECT_EQ(decoder.push(0xE2), "");
  EXPECT_EQ(decoder.push('a'),
            "\xEF\xBF\xBD"
            "a");
  EXPECT_EQ(decoder.push(0xF0), "");
  EXPECT_EQ(decoder.flush(), "\xEF\xBF\xBD");
  EXPECT_EQ(decoder.flush(), "");
}

}  // namespace
}  // namespace skipdec::runtime
