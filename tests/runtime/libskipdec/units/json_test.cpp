// Tests which texts parse_json accepts, and which it refuses before it allocates memory for them.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "errors.h"
#include "json/tree.h"

namespace skipdec::runtime {
namespace {

using nlohmann::json;

const Document kTextDocument{Status::kSchedule, "file.json", "write it again"};

std::string text_refusal(const std::string& text, const JsonLimits& limits = {}) {
  try {
    parse_json(text, kTextDocument, limits);
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), kTextDocument.status);
    EXPECT_NE(std::string(error.what()).find("; write it again"), std::string::npos);
    return error.what();
  }
  return "nothing was refused";
}

std::string nested(std::size_t levels) {
  return std::string(levels, '[') + std::string(levels, ']');
}

TEST(ParseJson, ReturnsTheTreeOfTheText) {
  const std::string text =
      R"({"a": [1, -2, 1.5, true, null, "\u00e9\ud83d\ude00"], "b": {"a": []}, "": 18446744073709551615})";
  EXPECT_EQ(parse_json(text, kTextDocument), json::parse(text));
  EXPECT_EQ(parse_json("\xEF\xBB\xBF 7 ", kTextDocument), json(7));
}

TEST(ParseJson, RefusesInvalidJson) {
  for (const std::string text :
       {"", "{", "[1,]", "{\"a\" 1}", "nul", "1 2", "\"a", "[NaN]", "\"\xC3(\"", "\"\xED\xA0\x80\"",
        "\"\\ud800\"", "\"\xF5\x80\x80\x80\"", "// no\n1", "'a'", "\"\n\""})
    EXPECT_NE(text_refusal(text).find("file.json | is not JSON"), std::string::npos) << text;
  EXPECT_NE(text_refusal(std::string("{}\0x", 4)).find("byte 3 is NUL"), std::string::npos);
}

TEST(ParseJson, RefusesNumbersThatDoNotFit) {
  EXPECT_NE(text_refusal("[18446744073709551616]").find("18446744073709551616"), std::string::npos);
  EXPECT_NE(text_refusal("-9223372036854775809").find("64 bits"), std::string::npos);
  EXPECT_NE(text_refusal("1e999").find("range of a double"), std::string::npos);
}

TEST(ParseJson, RefusesADuplicateKey) {
  EXPECT_NE(text_refusal(R"({"b": {"key": 1, "key": 1}})").find("key twice in one object: key"),
            std::string::npos);
  EXPECT_EQ(parse_json(R"([{"a": 1}, {"a": {"a": 1}}])", kTextDocument).size(), 2U);
}

TEST(ParseJson, RefusesNestingBeyondItsLimit) {
  JsonLimits shallow;
  shallow.max_nesting = 2;
  EXPECT_NO_THROW(parse_json(nested(100), kTextDocument));
  EXPECT_NE(text_refusal(nested(101)).find("deeper than 100 levels"), std::string::npos);
  EXPECT_NE(text_refusal(std::string(1 << 20, '[')).find("deeper"), std::string::npos);
  EXPECT_NE(text_refusal("[[1]]", shallow).find("deeper than 2"), std::string::npos);
}

TEST(ParseJson, RefusesTextsBeyondItsLimits) {
  JsonLimits limits;
  limits.max_values = 4;
  EXPECT_NO_THROW(parse_json("[1,2,3]", kTextDocument, limits));
  EXPECT_NE(text_refusal("[1,2,3,4]", limits).find("more than 4 values"), std::string::npos);
  limits.max_bytes = 6;
  EXPECT_NE(text_refusal("[1,2,3]", limits).find("larger than 6 bytes"), std::string::npos);
}

}  // namespace
}  // namespace skipdec::runtime
