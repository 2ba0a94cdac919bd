#include "kv/slot_cache.h"

#include <gtest/gtest.h>

#include "errors.h"
#include "kv/prefixes.h"

namespace skipdec::runtime {
namespace {

using Rows = std::vector<SlotCache::Row>;

constexpr KVLayout kLayout{2, 3, DType::kFloat32};

class SlotsTest : public ::testing::Test {
 protected:
  void reserve(SlotCache::Row row, const Reservation& capacities) {
    cache_.reserve({row}, {&capacities});
    for (std::int64_t layer = 0; layer < cache_.num_layers(); ++layer) {
      if (capacities[static_cast<std::size_t>(layer)] == 0) continue;
      fill(cache_.enter(layer, {row}), static_cast<float>(row));
    }
    cache_.set_length(row, 4);
  }

  static void fill(const CacheView& slot, float value) {
    void* const key = slot.key;
    for (std::int64_t head = 0; head < kLayout.num_heads; ++head) {
      for (std::int64_t place = 0; place < 4 * kLayout.width; ++place) {
        static_cast<float*>(key)[head * slot.capacity * kLayout.width + place] = value;
      }
    }
  }

  // Returns the contents of the last head of a slot's third position.
  float held(std::int64_t layer, std::int64_t slot) const {
    const CacheView all = cache_.slots(layer, 0, slot + 1);
    const void* const key = all.key;
    return static_cast<const float*>(
        key)[((slot * kLayout.num_heads + 1) * all.capacity + 2) * kLayout.width];
  }

  BufferPool pool_{1 << 20};
  SlotCache cache_{pool_, kLayout, 2, {8, 64, 1 << 20}};
};

TEST_F(SlotsTest, TheLastResidentMovesIntoTheGapOfThatLayerOnly) {
  for (const SlotCache::Row row : {7, 8, 9}) reserve(row, {8, 8});
  cache_.leave(7, 1);
  EXPECT_EQ(cache_.residents(0), (Rows{7, 8, 9}));
  EXPECT_EQ(cache_.residents(1), (Rows{9, 8}));
  EXPECT_EQ(held(1, 0), 9);
  EXPECT_EQ(held(1, 1), 8);
  EXPECT_EQ(held(0, 0), 7);
}

TEST_F(SlotsTest, BuffersThatGrowKeepTheirContents) {
  reserve(1, {8, 0});
  const std::uint64_t before = cache_.generation(0);
  reserve(2, {40, 0});
  EXPECT_NE(cache_.generation(0), before);
  EXPECT_EQ(held(0, 0), 1);
  EXPECT_EQ(held(0, 1), 2);
}

TEST_F(SlotsTest, CopiesHaveTheContentsOfTheirRow) {
  const Reservation capacities{8, 8};
  cache_.reserve({1, 2, 3}, {&capacities, &capacities, &capacities});
  for (const std::int64_t layer : {0, 1}) fill(cache_.enter(layer, {1}), 1);
  cache_.set_length(1, 4);
  cache_.fork(1, {2, 3});
  EXPECT_EQ(cache_.residents(1), (Rows{1, 2, 3}));
  EXPECT_EQ(held(1, 2), 1);
}

TEST_F(SlotsTest, AllMemoryIsReturnedOnceRowsHaveEnded) {
  for (const SlotCache::Row row : {1, 2, 3}) reserve(row, {16, 8});
  EXPECT_GT(pool_.in_use_bytes(), 0);
  for (const SlotCache::Row row : {2, 1, 3}) cache_.release(row);
  EXPECT_EQ(pool_.in_use_bytes(), 0);
}

TEST_F(SlotsTest, PlannedBytesEqualAcquiredBytes) {
  const Reservation capacities{20, 9};
  const std::int64_t planned = cache_.bytes_with({&capacities, &capacities}, 0);
  cache_.reserve({1, 2}, {&capacities, &capacities});
  EXPECT_EQ(pool_.in_use_bytes(), planned);
  EXPECT_EQ(cache_.bytes_alone(capacities, 2), planned);
}

TEST(PoolTest, RefusesBuffersBeyondItsLimitAndStaysUsable) {
  BufferPool pool(10'000);
  Buffer held = pool.acquire(6000);
  EXPECT_THROW(pool.acquire(6000), Error);
  EXPECT_EQ(pool.in_use_bytes(), 6144);
  pool.release(std::move(held));
  EXPECT_EQ(pool.in_use_bytes(), 0);
}

class PrefixesTest : public ::testing::Test {
 protected:
  static std::vector<std::int64_t> tokens(std::int64_t count, std::int64_t first = 0) {
    std::vector<std::int64_t> ids;
    for (std::int64_t id = 0; id < count; ++id) ids.push_back(first + id);
    return ids;
  }

  void keep(const std::vector<std::int64_t>& prompt) { prefixes_.record(prompt).commit(); }

  std::int64_t kept_tokens(const std::vector<std::int64_t>& prompt, const std::string& owner = {}) {
    return static_cast<std::int64_t>(prefixes_.find(prompt, owner).size()) * kBlockTokens;
  }

  BufferPool pool_{1 << 20};
  PrefixCache prefixes_{pool_, kLayout, 2};
};

TEST_F(PrefixesTest, TheLastTokenOfAPromptMustRun) {
  prefixes_.set_limit(1 << 20);
  keep(tokens(48));
  EXPECT_EQ(kept_tokens(tokens(48)), 32);
  EXPECT_EQ(kept_tokens(tokens(49)), 48);
  EXPECT_EQ(kept_tokens(tokens(49, 1)), 0);
}

TEST_F(PrefixesTest, AnOwnerFindsOnlyItsOwnPrefixes) {
  prefixes_.set_limit(1 << 20);
  prefixes_.record(tokens(32), "a").commit();
  EXPECT_EQ(kept_tokens(tokens(33), "a"), 32);
  EXPECT_EQ(kept_tokens(tokens(33), "b"), 0);
  EXPECT_EQ(kept_tokens(tokens(33)), 0);
  prefixes_.record(tokens(32), "b").commit();
  EXPECT_EQ(prefixes_.find(tokens(33), "b").size(), 2U);
  prefixes_.set_limit(0);
  EXPECT_EQ(pool_.in_use_bytes(), 0);
}

TEST_F(PrefixesTest, TheLeastRecentlyUsedPrefixIsEvictedFromItsEnd) {
  prefixes_.set_limit(1 << 20);
  keep(tokens(32));
  keep(tokens(32, 100));
  const std::int64_t block = prefixes_.nbytes() / 4;
  prefixes_.find(tokens(33));
  prefixes_.set_limit(3 * block);
  EXPECT_EQ(kept_tokens(tokens(33)), 32);
  EXPECT_EQ(kept_tokens(tokens(33, 100)), 16);
}

// Else nothing would find the recorded block, which would hold memory until it is evicted.
TEST_F(PrefixesTest, ABlockStaysWhileOneAfterItIsRecorded) {
  prefixes_.set_limit(1 << 20);
  keep(tokens(16));
  prefixes_.set_limit(2 * prefixes_.nbytes());
  PrefixCache::Recording recording = prefixes_.record(tokens(32));
  keep(tokens(16, 100));
  EXPECT_EQ(kept_tokens(tokens(17, 100)), 0);
  recording.commit();
  EXPECT_EQ(kept_tokens(tokens(33)), 32);
  keep(tokens(32, 100));
  EXPECT_EQ(kept_tokens(tokens(33, 100)), 32);
}

TEST_F(PrefixesTest, AnAbandonedRecordingLeavesNothing) {
  prefixes_.set_limit(1 << 20);
  {
    const PrefixCache::Recording abandoned = prefixes_.record(tokens(64));
  }
  EXPECT_EQ(prefixes_.nbytes(), 0);
  EXPECT_EQ(pool_.in_use_bytes(), 0);
}

TEST_F(PrefixesTest, ARecordingKeepsFewerBlocksIfNoneCanBeAllocated) {
  BufferPool small(4096);
  PrefixCache prefixes(small, kLayout, 2);
  prefixes.set_limit(1 << 20);
  prefixes.record(tokens(48)).commit();
  EXPECT_LT(prefixes.find(tokens(49)).size(), 3U);
  EXPECT_LE(small.in_use_bytes(), 4096);
}

TEST(KVLayoutTest, SizesBeyondAnyMachineDoNotOverflow) {
  constexpr std::int64_t kWide = 1 << 20, kLong = 1 << 24, kRows = 1024;
  const KVLayout layout{kWide, kWide, DType::kFloat32};
  BufferPool pool(INT64_MAX);
  const SlotCache cache(pool, layout, 4096, {kRows, kLong, INT64_MAX});
  for (const std::int64_t positions : {std::int64_t{1} << 20, kLong}) {
    const std::int64_t alone = cache.bytes_alone(Reservation(4096, positions), kRows);
    EXPECT_GT(alone, std::int64_t{1} << 46) << positions;
  }
}

}  // namespace
}  // namespace skipdec::runtime
