// Tests requests of skipdec.h without ONNX Runtime.
#include <gtest/gtest.h>
#include <skipdec/skipdec.h>

#include <array>
#include <atomic>
#include <future>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "abi/guard.h"
#include "abi/handles.h"
#include "arithmetic_model.h"
#include "submissions.h"

namespace skipdec::runtime {
namespace {

using support::submit;

std::unique_ptr<skipdec_request> request_of(std::shared_ptr<Ticket> ticket) {
  auto request = std::make_unique<skipdec_request>();
  request->ticket = std::move(ticket);
  return request;
}

// The reader polls at the moment at which the last delta and the end arrive.
TEST(RequestsTest, NoTimeoutLosesTheLastDelta) {
  constexpr std::size_t kRounds = 20000;
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (std::size_t round = 0; round < kRounds; ++round) {
    tickets.push_back(std::make_shared<Ticket>(1, std::make_shared<EngineThread>()));
  }
  std::atomic<std::size_t> turn{0};
  std::thread engine([&] {
    for (std::size_t round = 0; round < kRounds; ++round) {
      while (turn < round + 1) {
      }
      tickets[round]->mailbox.put(Delta{});
      tickets[round]->mailbox.end({});
    }
  });
  std::size_t lost = 0;
  for (const auto& ticket : tickets) {
    const auto request = request_of(ticket);
    std::size_t count = 0;
    const skipdec_delta* delta = nullptr;
    ++turn;
    for (;;) {
      const skipdec_status status = skipdec_request_next(request.get(), 0, &delta);
      if (status == SKIPDEC_END) break;
      if (status == SKIPDEC_OK) ++count;
    }
    lost += 1 - count;
  }
  engine.join();
  EXPECT_EQ(lost, 0U);
}

std::shared_ptr<Service> open_service(std::int64_t max_model_len = 0) {
  ServiceOptions options;
  options.batch.kv_memory = 1 << 22;
  options.batch.max_model_len = max_model_len;
  return std::make_shared<Service>(std::make_shared<support::ArithmeticBundle>(),
                                   std::make_shared<support::ArithmeticBackend>(), options);
}

TEST(RequestsTest, WaitingWithinACallbackIsRefusedButPollingIsNot) {
  const auto service = open_service();
  SamplingParams params;
  params.ignore_eos = true;
  params.max_tokens = 4;
  const auto other = submit(*service, TokenSpan{5}, params);
  std::vector<skipdec_status> waits, polls;
  std::string words;
  const auto own = submit(*service, TokenSpan{4}, params, [&](const Delta&) {
    const auto request = request_of(other);
    const skipdec_delta* delta = nullptr;
    waits.push_back(skipdec_request_wait(request.get(), -1));
    words = skipdec_last_error();
    waits.push_back(skipdec_request_wait(request.get(), 0.1));
    waits.push_back(skipdec_request_next(request.get(), -1, &delta));
    polls.push_back(skipdec_request_wait(request.get(), 0));
    return true;
  });
  EXPECT_TRUE(own->mailbox.wait(-1));
  EXPECT_EQ(waits, std::vector<skipdec_status>(12, SKIPDEC_USAGE));
  EXPECT_NE(words.find("within a callback"), std::string::npos) << words;
  for (const skipdec_status status : polls) EXPECT_NE(status, SKIPDEC_USAGE);
}

TEST(RequestsTest, ThreadsThatReuseTheIdOfAnEnginesThreadMayWaitAndRead) {
  const auto service = open_service();
  SamplingParams params;
  params.ignore_eos = true;
  params.max_tokens = 4;
  const auto request = request_of(submit(*service, TokenSpan{5}, params));
  ASSERT_EQ(skipdec_request_wait(request.get(), -1), SKIPDEC_OK);
  service->close();
  for (int i = 0; i < 8; ++i) {  // the system reuses the IDs of threads that ended
    skipdec_status status = SKIPDEC_USAGE;
    std::thread([&] { status = skipdec_request_wait(request.get(), -1); }).join();
    EXPECT_EQ(status, SKIPDEC_OK);
  }
  std::array<const skipdec_completion*, 4> read{};
  std::vector<std::thread> readers;
  for (const skipdec_completion*& each : read)
    readers.emplace_back([&] { skipdec_request_completion(request.get(), 0, &each); });
  for (std::thread& each : readers) each.join();
  for (const skipdec_completion* each : read) {
    ASSERT_NE(each, nullptr);
    EXPECT_EQ(each, read.front());
  }
}

TEST(RequestsTest, AWaitingCallKeepsAnEngineAliveThatAnotherThreadCloses) {
  skipdec_engine* const engine = std::make_unique<skipdec_engine>().release();  // closing frees it
  engine->service = open_service();
  std::promise<void> release;
  std::shared_future<void> is_released = release.get_future().share();
  SamplingParams params;
  submit(*engine->service, TokenSpan{5}, params, [&](const Delta&) {
    is_released.wait();
    return true;
  });
  std::thread draining([&] { EXPECT_EQ(skipdec_engine_drain(engine, -1), SKIPDEC_OK); });
  const auto is_draining = [&] {
    try {
      engine->service->submit_many({}, params, "", 0, {});
      return false;
    } catch (const Error&) {
      return true;
    }
  };
  while (!is_draining()) std::this_thread::yield();
  EXPECT_EQ(engine->service.use_count(), 2);
  release.set_value();
  EXPECT_EQ(skipdec_engine_close(engine), SKIPDEC_OK);
  draining.join();
}

TEST(RequestsTest, CountsThatExceedMemoryAreRefused) {
  skipdec_engine engine;
  engine.service = open_service();
  const skipdec_prompt prompt{"a", nullptr, 0};
  skipdec_request* request = nullptr;
  const auto most = std::numeric_limits<std::size_t>::max();
  EXPECT_EQ(skipdec_submit_many(&engine, &prompt, most, nullptr, &request), SKIPDEC_USAGE);
  EXPECT_NE(std::string(skipdec_last_error()).find("prompts | are 18446744073709551615; allowed"),
            std::string::npos)
      << skipdec_last_error();
  const auto reserved = [most] { return std::vector<int>().reserve(most), SKIPDEC_OK; };
  EXPECT_EQ(guarded(reserved), SKIPDEC_USAGE);
}

TEST(RequestsTest, TokensBeyondMaxModelLenAreNeitherContinuedNorScored) {
  skipdec_engine engine;
  engine.service = open_service(20);
  const std::vector<std::int64_t> tokens(30, 5);
  skipdec_request* request = nullptr;
  skipdec_params params;
  skipdec_params_init(&params, sizeof params);
  params.max_tokens = 1;
  EXPECT_EQ(skipdec_submit_tokens(&engine, tokens.data(), tokens.size(), &params, &request),
            SKIPDEC_CAPACITY);
  EXPECT_NE(std::string(skipdec_last_error())
                .find("max_model_len allows 20; raise it, or shorten the prompt"),
            std::string::npos)
      << skipdec_last_error();
  skipdec_score* score = nullptr;
  EXPECT_EQ(skipdec_score_tokens(&engine, tokens.data(), tokens.size(), tokens.data(), 2, nullptr,
                                 &score),
            SKIPDEC_CAPACITY);
  EXPECT_NE(std::string(skipdec_last_error()).find("max_model_len allows 20"), std::string::npos)
      << skipdec_last_error();
}

TEST(RequestsTest, AnEarlyRefusalLeavesNoHandle) {
  skipdec_engine engine;
  engine.service = open_service();
  const std::vector<std::int64_t> tokens(support::kPositions + 1, 5);
  skipdec_request stale;
  skipdec_request* request = &stale;
  EXPECT_EQ(skipdec_submit_tokens(&engine, tokens.data(), tokens.size(), nullptr, &request),
            SKIPDEC_USAGE);
  EXPECT_EQ(request, nullptr);
  skipdec_score old;
  skipdec_score* score = &old;
  EXPECT_EQ(skipdec_score_tokens(&engine, tokens.data(), tokens.size(), tokens.data(), 1, nullptr,
                                 &score),
            SKIPDEC_USAGE);
  EXPECT_EQ(score, nullptr);
}

TEST(RequestsTest, ATimeoutHasItsOwnErrorMessage) {
  const auto request = request_of(std::make_shared<Ticket>(1, std::make_shared<EngineThread>()));
  const skipdec_delta* delta = nullptr;
  keep_error("of another call");
  EXPECT_EQ(skipdec_request_wait(request.get(), 0), SKIPDEC_TIMEOUT);
  EXPECT_NE(std::string(skipdec_last_error()).find("in time"), std::string::npos);
  keep_error("of another call");
  EXPECT_EQ(skipdec_request_next(request.get(), 0, &delta), SKIPDEC_TIMEOUT);
  EXPECT_NE(std::string(skipdec_last_error()).find("in time"), std::string::npos);
}

TEST(RequestsTest, TheLowerLimitIsNamed) {
  ModelSpec model;
  model.vocab_size = 10;
  model.max_seq_len = 64;
  SamplingParams params;
  params.max_tokens = 99;
  for (const std::int64_t max_model_len : {20, 64}) {
    try {
      resolve_max_tokens({1}, params, model, max_model_len);
      ADD_FAILURE() << "is not refused";
    } catch (const Error& error) {
      const char* limit = max_model_len == 20 ? "max_model_len allows 20" : "the bundle holds 64";
      EXPECT_NE(std::string(error.what()).find(limit), std::string::npos) << error.what();
    }
  }
}

TEST(RequestsTest, AnErrorMessageIsUtf8) {
  keep_error("/\xFF\xFEZ\xC3\xBC | does not exist");
  EXPECT_STREQ(skipdec_last_error(), "/??Z\xC3\xBC | does not exist");
}

TEST(RequestsTest, LogprobsOfChosenTokensCountTowardsTheLimit) {
  ModelSpec model;
  model.vocab_size = 10;
  model.max_seq_len = 1 << 20;
  SamplingParams params;
  params.n = 1024;
  params.max_tokens = 1 + kMaxLogprobs / params.n;
  const auto resolve = [&] { resolve_max_tokens({1}, params, model, model.max_seq_len); };
  EXPECT_NO_THROW(resolve());
  params.logprobs = 0;
  EXPECT_THROW(resolve(), Error);
  params.max_tokens -= 1;
  EXPECT_NO_THROW(resolve());
  params.logprobs = 1;
  EXPECT_THROW(resolve(), Error);
}

// skipdec_stats has no _init function: its caller sets the size.
TEST(RequestsTest, RefusalOfASizeNamesTheStructAndTheAllowedSizes) {
  const skipdec_stats unset{};
  std::string message;
  try {
    with_defaults(&unset, unset, "stats");
  } catch (const Error& error) {
    message = error.what();
  }
  const std::string allowed = "has the size 0; allowed: " + std::to_string(sizeof(std::size_t)) +
                              " to " + std::to_string(sizeof unset);
  EXPECT_NE(message.find(allowed), std::string::npos) << message;
  EXPECT_NE(message.find("sizeof(skipdec_stats)"), std::string::npos) << message;
}

}  // namespace
}  // namespace skipdec::runtime
