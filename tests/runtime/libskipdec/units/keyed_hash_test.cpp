// Tests that keys cannot be chosen to collide, which would make tables as slow as lists.
#include "keyed_hash.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "scheduling/clock.h"
#include "tokenizer/model/pair_table.h"
#include "tokenizer/model/vocabulary.h"

namespace skipdec::runtime {
namespace {

constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15U;  // multiplies keys in well-known hashes
constexpr std::uint64_t kKeys = 30000;

// Returns the number whose product with ``kGolden`` is ``product``.
std::uint64_t factor_of(std::uint64_t product) {
  std::uint64_t inverse = kGolden;
  for (int round = 0; round < 6; ++round) inverse *= 2 - kGolden * inverse;
  return product * inverse;
}

template <class Fill>
double seconds_of(const Fill& fill) {
  const double start = thread_seconds_now();
  fill();
  return thread_seconds_now() - start;
}

TEST(KeyedHash, TextsThatCollideInAKnownHashAreIndexedAsFastAsOthers) {
  const auto index = [](auto word_of) {
    Vocabulary vocabulary;
    for (std::uint64_t key = 0; key < kKeys; ++key) {
      const std::uint64_t word = word_of(key);
      std::string text(sizeof word, 0);
      std::memcpy(text.data(), &word, sizeof word);
      vocabulary.add(text, static_cast<std::uint32_t>(key));
    }
    EXPECT_EQ(vocabulary.finish(), "");
  };
  const double others = seconds_of([&] { index([](std::uint64_t key) { return key << 20U; }); });
  const auto colliding = [](std::uint64_t key) {  // the halves of the product are equal
    return factor_of(key << 32U | key) ^ sizeof key;
  };
  EXPECT_LT(seconds_of([&] { index(colliding); }), 10 * others);
}

TEST(KeyedHash, PairsThatCollideInAKnownHashAreAddedAsFastAsOthers) {
  const auto fill = [](auto key_of) {
    PairTable table;
    for (std::uint64_t number = 0; number < kKeys; ++number) {
      const std::uint64_t key = key_of(number);
      table.put(static_cast<std::uint32_t>(key >> 32U), static_cast<std::uint32_t>(key), {0, 0});
    }
  };
  const double others = seconds_of([&] { fill([](std::uint64_t number) { return number; }); });
  const auto colliding = [](std::uint64_t number) {
    const std::uint64_t mixed = factor_of(number);  // the product's upper half is zero
    return mixed ^ (mixed >> 29U) ^ (mixed >> 58U);
  };
  EXPECT_LT(seconds_of([&] { fill(colliding); }), 10 * others);
}

}  // namespace
}  // namespace skipdec::runtime
