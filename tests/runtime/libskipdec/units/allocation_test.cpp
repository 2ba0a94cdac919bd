// Tests that steps do not allocate, by counting the calls of operator new, and that other requests
// survive an allocation that fails, by failing each in turn.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#include "arithmetic_model.h"
#include "scheduling/running_batch.h"
#include "service/service.h"
#include "stitching/slot_stitcher.h"
#include "submissions.h"

namespace {

thread_local std::int64_t allocations = 0;
thread_local std::size_t most_bytes = SIZE_MAX;       // larger allocations fail
thread_local std::int64_t until_failure = INT64_MAX;  // allocations before one fails
std::atomic<bool> has_failed{false};                  // in any thread

bool fails_now() {
  if (until_failure-- != 0) return false;
  has_failed = true;
  return true;
}

}  // namespace

void* operator new(std::size_t size) {
  ++allocations;
  if (size > most_bytes || fails_now()) throw std::bad_alloc();
  void* const memory = std::malloc(size == 0 ? 1 : size);  // NOLINT(*-no-malloc)
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(std::size_t size, const std::nothrow_t& /*tag*/) noexcept {
  ++allocations;
  return std::malloc(size == 0 ? 1 : size);  // NOLINT(*-no-malloc)
}
void operator delete(void* memory) noexcept { std::free(memory); }  // NOLINT(*-no-malloc)
void operator delete(void* memory, std::size_t /*size*/) noexcept { std::free(memory); }  // NOLINT
void operator delete(void* memory, const std::nothrow_t& /*tag*/) noexcept {
  std::free(memory);  // NOLINT(*-no-malloc)
}

// The library allocates its buffers with this function.
extern "C" void* aligned_alloc(std::size_t alignment, std::size_t size) noexcept {
  void* memory = nullptr;
  return !fails_now() && posix_memalign(&memory, alignment, size) == 0 ? memory : nullptr;
}

namespace skipdec::runtime {
namespace {

using support::ArithmeticBackend;
using support::ArithmeticBundle;

class AllocationTest : public ::testing::Test {
 protected:
  PromptRow prompt(SlotCache::Row row, bool has_draft_layer = false) const {
    PromptRow made;
    made.row = row;
    made.tokens = {5, 6, 7};
    made.schedule = schedule_;
    made.reservation = reservation_of(*schedule_, 3, 40, has_draft_layer);
    return made;
  }

  ArithmeticBundle bundle_;
  ArithmeticBackend backend_;
  Engines engines_ = Engines::load(bundle_.manifest(), backend_);
  SchedulePointer schedule_ = bundle_.schedules().resolve(support::falling_schedule(5, 2, 8), 40);
};

TEST_F(AllocationTest, StepsAllocateNothingWhileTheirRowsAndPlansStay) {
  SlotStitcher stitcher(engines_, bundle_.manifest(), {3, 64, 1 << 22}, true);
  std::vector<PromptRow> prompts{prompt(0), prompt(1), prompt(2)};
  stitcher.prefill({&prompts[0], &prompts[1], &prompts[2]});
  std::vector<StepRow> rows(3);
  std::int64_t with_allocations = 0;
  for (std::int64_t index = 0; index < 36; ++index) {
    for (std::size_t row = 0; row < rows.size(); ++row) {
      rows[row] = {static_cast<SlotCache::Row>(row), {5}, 3 + index, {&schedule_->plan(index)}};
    }
    const std::int64_t before = allocations;
    stitcher.step(rows);
    with_allocations += allocations > before ? 1 : 0;
  }
  EXPECT_EQ(with_allocations, 4);  // the first step of each plan
}

TEST_F(AllocationTest, DraftStepsAllocateNothingWhileTheirRowsStay) {
  SlotStitcher stitcher(engines_, bundle_.manifest(), {3, 64, 1 << 22}, false);
  std::vector<PromptRow> prompts{prompt(0), prompt(1), prompt(2)};
  stitcher.prefill({&prompts[0], &prompts[1], &prompts[2]});
  std::vector<StepRow> rows(3);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    rows[row] = {static_cast<SlotCache::Row>(row), {5}, 3, {&schedule_->plan(0)}};
  }
  const LayerPlan plan{0, 5};
  const std::vector<std::vector<std::size_t>> drafting{{0, 1, 2}, {0, 2}, {1}};
  for (const auto& places : drafting) stitcher.draft(rows, places, plan);
  const std::int64_t before = allocations;
  for (const auto& places : drafting) stitcher.draft(rows, places, plan);
  EXPECT_EQ(allocations, before);
}

TEST_F(AllocationTest, TrainedDraftsAndTheirPassesAllocateNothingOnceTheyHaveRun) {
  engines_.load_trained_drafts(bundle_, backend_);
  SlotStitcher stitcher(engines_, bundle_.manifest(), {3, 64, 1 << 22}, false, true);
  std::vector<PromptRow> prompts{prompt(0, true), prompt(1, true), prompt(2, true)};
  stitcher.prefill({&prompts[0], &prompts[1], &prompts[2]});
  std::vector<StepRow> rows(3);
  std::vector<DraftRow> drafting(3);
  std::int64_t with_allocations = 0;
  for (std::int64_t index = 0; index < 36; index += 2) {
    for (std::size_t row = 0; row < rows.size(); ++row) {
      const auto number = static_cast<SlotCache::Row>(row);
      rows[row] = {number, {5, 6}, 3 + index, {&schedule_->plan(index), &schedule_->plan(index)}};
      drafting[row] = {number, 5, 3 + index};
    }
    const std::int64_t before = allocations;
    stitcher.draft_trained(drafting);
    for (DraftRow& row : drafting) ++row.position;
    stitcher.draft_trained(drafting);
    stitcher.step(rows);
    with_allocations += allocations > before ? 1 : 0;
  }
  // The first two drafts, since a prompt leaves the states of one token, and the first pass of each
  // plan.
  EXPECT_EQ(with_allocations, 5);
}

TEST_F(AllocationTest, StepsOfABatchAllocateNothingOnceTheyHaveRun) {
  RunningBatchConfig config;
  config.max_batch_size = 2;
  config.kv_memory = 1 << 22;
  RunningBatch batch(bundle_.manifest(), engines_, nullptr, config);
  Request request;
  request.prompt = {5, 6};
  request.params.temperature = 0;
  request.params.ignore_eos = true;
  request.max_tokens = request.params.max_tokens = 50;
  request.schedule = bundle_.schedules().resolve("full", 50);
  for (const std::int64_t number : {0, 1}) batch.add(number, request, 0);
  for (int step = 0; step < 5; ++step) batch.step(0);
  const std::int64_t before = allocations;
  for (int step = 0; step < 40; ++step) batch.step(0);
  EXPECT_EQ(allocations, before);
}

// Calls ``run`` with the number of the allocation to fail, until none has failed.
template <class Run>
void fail_each_allocation(const Run& run) {
  for (std::int64_t number = 0;; ++number) {
    has_failed = false;
    run(number);
    if (!has_failed || ::testing::Test::HasFailure()) return;
  }
}

TEST_F(AllocationTest, ABatchRunsAsBeforeAfterAnyFailedAllocation) {
  engines_.load_trained_drafts(bundle_, backend_);
  RunningBatchConfig config;
  config.max_batch_size = 3;
  config.kv_memory = 1 << 22;
  config.draft = DraftConfig::parse("own+trained,adapt=no");
  // All requests have one prompt, of two cached blocks; every second has two completions.
  const auto add = [this](RunningBatch& batch, std::int64_t number) {
    Request request;
    request.prompt.assign(33, 5);
    request.params.n = number % 2 == 0 ? 2 : 1;
    request.params.seed = 5;
    request.params.ignore_eos = true;
    request.max_tokens = request.params.max_tokens = 4;
    request.schedule = bundle_.schedules().resolve("full", 4);
    batch.add(number, std::move(request), 0);
  };
  const auto run = [](RunningBatch& batch) {
    while (batch.is_busy()) batch.step(0);
  };
  const auto texts_of = [&](RunningBatch& batch, std::int64_t first) {
    for (const std::int64_t number : {first, first + 1}) add(batch, number);
    run(batch);
    std::vector<TokenSpan> texts;
    for (const std::int64_t number : {first, first + 1}) {
      for (const Completion& each : batch.take(number)) texts.push_back(each.token_ids);
    }
    return texts;
  };
  RunningBatch undisturbed(bundle_.manifest(), engines_, nullptr, config);
  const std::vector<TokenSpan> expected = texts_of(undisturbed, 0);
  fail_each_allocation([&](std::int64_t number) {
    SCOPED_TRACE(number);
    RunningBatch batch(bundle_.manifest(), engines_, nullptr, config);
    until_failure = number;
    for (const std::int64_t each : {0, 1, 2}) {
      try {
        add(batch, each);
      } catch (const std::bad_alloc&) {  // only this request fails
      }
      if (each == 0) continue;
      run(batch);
    }
    until_failure = INT64_MAX;
    EXPECT_EQ(batch.stats().reserved_bytes, 0);
    EXPECT_EQ(texts_of(batch, 4), expected);
  });
}

TEST(IntakeTest, ASubmissionWithoutMemoryQueuesNothing) {
  fail_each_allocation([](std::int64_t number) {
    SCOPED_TRACE(number);
    ServiceOptions options;
    options.batch.kv_memory = 1 << 22;
    Service service(std::make_shared<ArithmeticBundle>(), std::make_shared<ArithmeticBackend>(),
                    options);
    std::atomic<int> num_deltas{0};
    const OnDelta count = [&](const Delta& /*delta*/) { return ++num_deltas > 0; };
    const std::vector<Prompt> prompts(20, TokenSpan{4});
    until_failure = number;
    bool is_queued = true;
    try {
      service.submit_many(prompts, {}, "", 0, count);
    } catch (const std::bad_alloc&) {
      is_queued = false;
    }
    until_failure = INT64_MAX;
    EXPECT_TRUE(service.drain(10));
    EXPECT_EQ(num_deltas > 0, is_queued);
  });
}

TEST(IntakeTest, ARequestWithoutMemoryEndsAlone) {
  ServiceOptions options;
  options.batch.kv_memory = 1 << 22;
  Service service(std::make_shared<ArithmeticBundle>(), std::make_shared<ArithmeticBackend>(),
                  options);
  SamplingParams small;
  small.ignore_eos = true;
  const auto limits = [](const Delta& /*delta*/) {  // memory of the engine's thread
    most_bytes = 1 << 17;
    return true;
  };
  EXPECT_TRUE(support::submit(service, {4}, small, limits)->mailbox.wait(-1));
  SamplingParams large = small;
  large.stop_token_ids.assign(1 << 16, 5);
  std::vector<Delta> deltas;
  const auto record = [&](const Delta& delta) { return deltas.push_back(delta), true; };
  const auto failed = {support::submit(service, {4}, large),
                       support::submit(service, {4}, large, record)};
  const auto other = support::submit(service, {4}, small);
  for (const auto& ticket : failed) {
    ASSERT_TRUE(ticket->mailbox.wait(-1));
    ASSERT_EQ(ticket->mailbox.progress(), Progress::kEnded);
    EXPECT_EQ(ticket->mailbox.completions().at(0).finish_reason, FinishReason::kError);
  }
  EXPECT_EQ((*failed.begin())->mailbox.next(0).delta->finish_reason, FinishReason::kError);
  ASSERT_EQ(deltas.size(), 1U);
  EXPECT_EQ(deltas[0].finish_reason, FinishReason::kError);
  ASSERT_TRUE(other->mailbox.wait(-1));
  ASSERT_EQ(other->mailbox.progress(), Progress::kEnded);
  EXPECT_EQ(other->mailbox.completions().at(0).finish_reason, FinishReason::kLength);
  EXPECT_TRUE(service.drain(-1));
  EXPECT_EQ(service.stats().failed, 2);
}

}  // namespace
}  // namespace skipdec::runtime
