#include "service/service.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "arithmetic_model.h"
#include "refusals.h"
#include "scheduling/drafting/draft_resolver.h"
#include "submissions.h"

namespace skipdec::runtime {
namespace {

using support::ArithmeticBackend;
using support::ArithmeticBundle;
using support::falling_schedule;
using support::submit;

SamplingParams greedy(std::int64_t max_tokens) {
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = max_tokens;
  params.ignore_eos = true;
  return params;
}

std::shared_ptr<Service> open(std::int64_t max_batch_size = 4, std::int64_t failing_call = 0,
                              std::int64_t max_waiting = 256, std::int64_t num_failing = 1) {
  ServiceOptions options;
  options.batch.max_batch_size = max_batch_size;
  options.batch.kv_memory = 1 << 22;
  options.max_waiting = max_waiting;
  return std::make_shared<Service>(std::make_shared<ArithmeticBundle>(),
                                   std::make_shared<ArithmeticBackend>(failing_call, num_failing),
                                   options);
}

std::vector<std::int64_t> tokens_of(Service& service, const TokenSpan& prompt,
                                    const std::string& schedule) {
  const auto ticket = service.submit_many({prompt}, greedy(12), schedule, 0, {}).front();
  std::vector<std::int64_t> tokens;
  while (const auto delta = ticket->mailbox.next(-1).delta) tokens.push_back(delta->token_id);
  return tokens;
}

TEST(ServiceTest, ManyThreadsGetTheTokensThatEachRequestHasAlone) {
  const std::vector<std::string> schedules{"full", falling_schedule(5, 2, 1),
                                           falling_schedule(3, 2, 2)};
  std::vector<std::vector<std::int64_t>> expected;
  for (std::int64_t number = 0; number < 12; ++number) {
    const auto service = open(1);
    expected.push_back(
        tokens_of(*service, {number + 3, 7}, schedules[static_cast<std::size_t>(number % 3)]));
  }
  const auto service = open(4);
  std::vector<std::thread> clients;
  for (std::int64_t number = 0; number < 12; ++number) {
    clients.emplace_back([&, number] {
      for (int round = 0; round < 5; ++round) {
        const auto& schedule = schedules[static_cast<std::size_t>(number % 3)];
        EXPECT_EQ(tokens_of(*service, {number + 3, 7}, schedule),
                  expected[static_cast<std::size_t>(number)]);
        service->stats();
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(service->stats().finished, 60);
}

TEST(ServiceTest, ACallbackMaySubmitCancelAndReleaseButNeitherWaitNorClose) {
  const auto service = open();
  std::promise<void> called;
  std::shared_ptr<Ticket> other, own;
  std::atomic<int> calls{0};
  std::promise<void> submitted;
  std::shared_future<void> is_submitted = submitted.get_future().share();
  own = submit(*service, TokenSpan{4}, greedy(20), [&](const Delta&) {
    is_submitted.wait();
    if (++calls > 1) return true;
    other = submit(*service, TokenSpan{5}, greedy(3));
    EXPECT_THROW(service->close(), Error);
    EXPECT_THROW(service->drain(0), Error);
    TokenSpan scored;
    EXPECT_THROW(service->score(TokenSpan{5}, TokenSpan{6}, "", scored), Error);
    own->release();
    service->cancel(own->number);
    called.set_value();
    return true;
  });
  submitted.set_value();
  called.get_future().wait();
  EXPECT_TRUE(own->mailbox.wait(-1));
  EXPECT_TRUE(other->mailbox.wait(-1));
  EXPECT_EQ(other->mailbox.completions()[0].token_ids.size(), 3U);
  EXPECT_EQ(own->mailbox.completions()[0].finish_reason, FinishReason::kAbort);
  EXPECT_EQ(calls, 1);
}

TEST(ServiceTest, ADeadlineThatHasPassedEndsATextAtOnceAndNanIsRefused) {
  const auto service = open();
  const auto late = service->submit_many({TokenSpan{4}}, greedy(40), "", -1, {}).front();
  EXPECT_TRUE(late->mailbox.wait(-1));
  EXPECT_EQ(late->mailbox.completions()[0].finish_reason, FinishReason::kAbort);
  EXPECT_EQ(std::get<std::string>(late->mailbox.completions()[0].stop_reason), "deadline");
  EXPECT_TRUE(late->mailbox.completions()[0].token_ids.empty());
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const auto submitted = [&] { service->submit_many({TokenSpan{4}}, greedy(40), "", kNan, {}); };
  EXPECT_NE(refusal(submitted).find("deadline | is nan"), std::string::npos) << refusal(submitted);
  const std::string refused = "timeout | is nan";
  EXPECT_NE(refusal([&] { late->require_may_wait(kNan); }).find(refused), std::string::npos);
  EXPECT_NE(refusal([&] { service->drain(kNan); }).find(refused), std::string::npos);
  EXPECT_EQ(service->stats().waiting, 0);
}

// Collects the last deltas that a callback receives, by request and completion.
class Ends {
 public:
  OnDelta on_delta() {
    return [this](const Delta& delta) {
      const std::scoped_lock lock(mutex_);
      if (delta.finish_reason) ends_[{delta.number, delta.index}].push_back(delta);
      return true;
    };
  }

  // Expects one last delta for each of ``n`` completions of each of the first ``count`` requests.
  void expect_one_each(std::int64_t count, std::int64_t n) {
    const std::scoped_lock lock(mutex_);
    for (std::int64_t request = 0; request < count; ++request) {
      for (std::int64_t index = 0; index < n; ++index) {
        EXPECT_EQ((ends_[{request, index}].size()), 1U) << request << ", " << index;
      }
    }
  }

  std::size_t count(FinishReason reason, const std::string& words) {
    const std::scoped_lock lock(mutex_);
    std::size_t count = 0;
    for (const auto& [place, deltas] : ends_) {
      for (const Delta& delta : deltas) {
        const auto* const text = std::get_if<std::string>(&delta.stop_reason);
        count += delta.finish_reason == reason && text != nullptr &&
                         text->find(words) != std::string::npos
                     ? 1
                     : 0;
      }
    }
    return count;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<Delta>> ends_;
};

SamplingParams two_each(std::int64_t max_tokens) {
  SamplingParams params = greedy(max_tokens);
  params.n = 2;
  params.temperature = 1;
  params.seed = 5;
  return params;
}

TEST(ServiceTest, APermanentlyFailingEngineEndsEachCallbackOnce) {
  constexpr std::size_t kCount = 12;
  Ends ends;
  const auto service = open(4, 20, 256, 1 << 20);
  const std::vector<Prompt> prompts(kCount, TokenSpan{4, 5});
  const auto tickets = service->submit_many(prompts, two_each(8), "", 0, ends.on_delta());
  for (const auto& ticket : tickets) EXPECT_TRUE(ticket->mailbox.wait(-1));
  ends.expect_one_each(kCount, 2);
  EXPECT_EQ(ends.count(FinishReason::kError, "fails by intent"), 2 * kCount);
  try {
    submit(*service, TokenSpan{4}, greedy(2));
    ADD_FAILURE() << "the request was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::kEngine);
  }
}

bool is_closed(Service& service) {
  try {
    service.submit_many({}, greedy(1), "", 0, {});
    return false;
  } catch (const Error&) {
    return true;
  }
}

TEST(ServiceTest, ClosingEndsEachCallbackOnce) {
  constexpr std::size_t kCount = 12;
  Ends ends;
  const auto service = open(4);
  std::promise<void> runs;
  std::atomic<bool> is_first{true};
  const auto on_delta = [&, record = ends.on_delta()](const Delta& delta) {
    if (is_first.exchange(false)) runs.set_value();
    while (!is_closed(*service)) std::this_thread::yield();
    return record(delta);
  };
  const std::vector<Prompt> prompts(kCount, TokenSpan{4, 5});
  service->submit_many(prompts, two_each(50), "", 0, on_delta);
  runs.get_future().wait();
  service->close();
  ends.expect_one_each(kCount, 2);
  EXPECT_EQ(ends.count(FinishReason::kAbort, "closed"), 2 * kCount);
}

TEST(ServiceTest, ACallbackThatThrowsEndsItsRequestAlone) {
  const auto service = open();
  std::atomic<int> calls{0};
  const auto standard = submit(*service, TokenSpan{4}, greedy(40), [&](const Delta&) -> bool {
    ++calls;
    throw std::runtime_error("by intent");
  });
  const auto other = submit(*service, TokenSpan{4}, greedy(40), [&](const Delta& delta) {
    if (!delta.finish_reason) throw 7;
    return true;
  });
  EXPECT_TRUE(standard->mailbox.wait(-1));
  EXPECT_TRUE(other->mailbox.wait(-1));
  for (const auto& ticket : {standard, other}) {
    ASSERT_EQ(ticket->mailbox.progress(), Progress::kEnded);
    EXPECT_EQ(ticket->mailbox.completions()[0].finish_reason, FinishReason::kError);
  }
  EXPECT_EQ(std::get<std::string>(standard->mailbox.completions()[0].stop_reason),
            "its callback threw: by intent");
  EXPECT_EQ(calls, 2);  // its first token and its end
  EXPECT_EQ(tokens_of(*service, {4}, "").size(), 12U);
  EXPECT_EQ(service->stats().failed, 2);
}

// Runs a request whose callback refuses its token ``number``; the pass may have written more.
void expect_end_at(Service& service, std::int64_t number, bool throws, const TokenSpan& all) {
  TokenSpan received;
  int ends = 0;
  SamplingParams params = greedy(static_cast<std::int64_t>(all.size()));
  params.logprobs = 0;
  const auto ticket = submit(service, TokenSpan{5, 6, 7}, params, [&](const Delta& delta) {
    if (delta.has_token) received.push_back(delta.token_id);
    ends += delta.finish_reason ? 1 : 0;
    if (static_cast<std::int64_t>(received.size()) < number) return true;
    if (throws) throw std::runtime_error("by intent");
    return false;
  });
  ASSERT_TRUE(ticket->mailbox.wait(-1));
  const Completion& ended = ticket->mailbox.completions().at(0);
  EXPECT_EQ(received, TokenSpan(all.begin(), all.begin() + number)) << number;
  EXPECT_EQ(ended.token_ids, received) << number;
  EXPECT_EQ(ended.finish_reason, throws ? FinishReason::kError : FinishReason::kAbort) << number;
  EXPECT_EQ(ends, 1) << number;
  EXPECT_EQ(ended.passes() + ended.accepted + 1, number);
  EXPECT_EQ(ended.layers.size(), received.size());
  EXPECT_EQ(ended.token_seconds.size(), received.size());
  EXPECT_EQ(ended.logprobs.size(), received.size());
  EXPECT_EQ(ended.logprobs_ends.size(), received.size());
}

TEST(ServiceTest, ACallbackThatRefusesATokenGetsNoLaterOneOfItsPass) {
  const auto bundle = std::make_shared<ArithmeticBundle>();
  ServiceOptions options;
  options.batch.kv_memory = 1 << 22;
  options.batch.draft = resolve_draft("own,adapt=no,exact=no", bundle->manifest());
  Service service(bundle, std::make_shared<ArithmeticBackend>(), options);
  const auto teaching = submit(service, TokenSpan{5, 6, 7}, greedy(20));
  ASSERT_TRUE(teaching->mailbox.wait(-1));
  const TokenSpan all = teaching->mailbox.completions().at(0).token_ids;
  for (std::int64_t number = 1; number < 20; ++number) {
    expect_end_at(service, number, false, all);
    expect_end_at(service, number, true, all);
  }
  const EngineStats stats = service.stats();
  EXPECT_GT(stats.accepted_draft_tokens, 0);
  EXPECT_EQ(stats.finished, 1);
  EXPECT_EQ(stats.aborted, 19);
  EXPECT_EQ(stats.failed, 19);
}

TEST(ServiceTest, ClosingEndsAllRequestsAndWakesTheirReaders) {
  const auto service = open(1);
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (std::int64_t number = 0; number < 6; ++number) {
    tickets.push_back(submit(*service, TokenSpan{number}, greedy(50)));
  }
  std::thread reader([&] {
    while (tickets[5]->mailbox.next(-1).delta) {
    }
    EXPECT_NE(tickets[5]->mailbox.progress(), Progress::kRunning);
  });
  service->close();
  service->close();
  reader.join();
  for (const auto& ticket : tickets) {
    if (ticket->mailbox.progress() == Progress::kClosed) {
      EXPECT_THROW(ticket->mailbox.require_open(), Error);
    }
  }
  EXPECT_THROW(submit(*service, TokenSpan{3}, greedy(2)), Error);
}

TEST(ServiceTest, DrainingRefusesNewRequestsAndFinishesEarlierOnes) {
  const auto service = open(1);
  const auto ticket = submit(*service, TokenSpan{4}, greedy(30));
  EXPECT_TRUE(service->drain(-1));
  EXPECT_EQ(ticket->mailbox.progress(), Progress::kEnded);
  EXPECT_THROW(submit(*service, TokenSpan{4}, greedy(2)), Error);
}

TEST(ServiceTest, TooManyWaitingRequestsAreRefusedAsBusy) {
  const auto service = open(1, 0, 2);
  std::promise<void> release;
  std::shared_future<void> is_released = release.get_future().share();
  std::atomic<bool> runs{false};
  const auto first = submit(*service, TokenSpan{4}, greedy(2), [&](const Delta&) {
    runs = true;
    is_released.wait();
    return true;
  });
  while (!runs) std::this_thread::yield();
  const auto second = submit(*service, TokenSpan{5}, greedy(2));
  const auto third = submit(*service, TokenSpan{6}, greedy(2));
  try {
    submit(*service, TokenSpan{7}, greedy(2));
    ADD_FAILURE() << "the request was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::kBusy);
  }
  release.set_value();
  EXPECT_TRUE(third->mailbox.wait(-1));
}

TEST(ServiceTest, TextsAreScoredWhileOthersRun) {
  const auto service = open(2);
  const auto ticket = submit(*service, TokenSpan{4}, greedy(40));
  TokenSpan scored;
  const ScoreResult result = service->score(TokenSpan{4, 5}, TokenSpan{6, 7}, "", scored);
  EXPECT_EQ(result.logprobs.size(), 2U);
  EXPECT_EQ(scored, (TokenSpan{6, 7}));
  EXPECT_TRUE(ticket->mailbox.wait(-1));
}

TEST(ServiceTest, AScheduleStaysInUseWhenItsFileIsDeleted) {
  const auto path = std::filesystem::path(::testing::TempDir()) / "service.json";
  std::ofstream(path) << falling_schedule(3, 2, 2);
  ServiceOptions options;
  options.batch.kv_memory = 1 << 22;
  options.schedule = path;
  Service service(std::make_shared<ArithmeticBundle>(), std::make_shared<ArithmeticBackend>(0, 1),
                  options);
  std::filesystem::remove(path);
  EXPECT_EQ(tokens_of(service, {4, 5}, ""), tokens_of(service, {4, 5}, falling_schedule(3, 2, 2)));
}

TEST(ServiceTest, MemoryTooSmallForAnyRequestIsRefused) {
  ServiceOptions options;
  options.batch.kv_memory = 1;
  const std::string words = refusal([&] {
    Service(std::make_shared<ArithmeticBundle>(), std::make_shared<ArithmeticBackend>(0, 1),
            options);
  });
  EXPECT_EQ(words.rfind("kv_memory | is 1 bytes for this bundle; allowed: ", 0), 0U) << words;
}

TEST(ServiceTest, OptionsAreCheckedBeforeEnginesLoad) {
  const auto path = std::filesystem::path(::testing::TempDir()) / "options";
  write_hollow_bundle(path);
  const auto words = [&](const auto& change) {
    ServiceOptions options;
    change(options.batch);
    return refusal([&] { Service::open(path, options); });
  };
  EXPECT_EQ(words([](auto& batch) { batch.max_batch_size = 0; }).rfind("max_batch_size | ", 0), 0U);
  EXPECT_EQ(words([](auto& batch) { batch.admission = "none"; }).rfind("admission | ", 0), 0U);
}

}  // namespace
}  // namespace skipdec::runtime
