// Tests SHA-256 and the digest that a document contains of itself.

#include <gtest/gtest.h>

#include <string>

#include "files/digest.h"
#include "files/sha256.h"
#include "hollow_bundle.h"
#include "refusals.h"

namespace skipdec::runtime {
namespace {

const Document kSealedDocument{Status::kBundle, "file.json", "do so"};

TEST(Sha256, GivesTheDigestsOfTheStandard) {  // FIPS 180-4's examples
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, IsTheSameWithoutCpuExtensionsAndInPieces) {
  std::string text;
  for (int length = 0; length < 300; ++length, text += static_cast<char>(length * 7)) {
    Sha256 portable(false);
    for (const char& byte : text) portable.update(&byte, 1);
    EXPECT_EQ(portable.hex_digest(), sha256_hex(text)) << length;
  }
}

TEST(Digest, IsComputedWithZerosInItsPlace) {
  const std::string text = sealed({{"a", 1}, {"z", {{"digest", "x"}}}});
  EXPECT_EQ(text, fuzzing::sealed(text));
  EXPECT_NO_THROW(require_digest(text, kSealedDocument));
}

TEST(Digest, DetectsAChangeOfAnyByte) {
  const std::string text = sealed({{"a", 1}, {"b", "c"}});
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] ^= 1;
    const std::string words = refusal([&] { require_digest(changed, kSealedDocument); });
    EXPECT_NE(words.find("file.json | digest: "), std::string::npos) << i;
  }
}

TEST(Digest, MustBeOnExactlyOneLine) {
  const std::string line = "  \"digest\": \"" + std::string(64, '0') + "\",\n";
  for (const std::string& text :
       {std::string("{}"), "{\n" + line + line + "}\n", std::string("{\n  \"digest\": \"0\"\n}\n")})
    EXPECT_NE(
        refusal([&] { require_digest(text, kSealedDocument); }).find("is not on exactly one line"),
        std::string::npos)
        << text;
}

}  // namespace
}  // namespace skipdec::runtime
