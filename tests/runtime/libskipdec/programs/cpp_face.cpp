// Tests what skipdec.hpp adds to skipdec.h on the given bundle, for test_cpp_face.py. Prints
// failures and exits with 1 if there are any.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <skipdec/skipdec.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

bool all_hold = true;

void expect(bool holds, const char* what) {
  if (!holds) std::printf("does not hold: %s\n", what);
  all_hold = all_hold && holds;
}

std::optional<skipdec_status> refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const skipdec::Error& error) {
    return error.status();
  }
  return std::nullopt;
}

std::string problem(const std::function<void()>& call) {
  try {
    call();
  } catch (const skipdec::Error& error) {
    return error.what();
  }
  return "";
}

skipdec::Params forty() { return skipdec::Params().max_tokens(40).ignore_eos().seed(3); }

void ranges(skipdec::Engine& engine) {
  std::string text;
  skipdec::Request request = engine.submit("Hello", forty());
  for (const skipdec::Delta& delta : request) text += delta.text;
  expect(request.has_ended() && request.wait(), "a range ends with its request");
  expect(text == request.completion().text, "the deltas of a range are the text");
  expect(!request.next(), "no delta follows the last one");
  expect(request.completion().token_ids.size() == 40, "a completion owns its tokens");

  skipdec::Request polled = engine.submit("Hello", forty());
  std::string again;
  while (!polled.has_ended()) {
    const std::optional<skipdec::Delta> delta = polled.next(skipdec::Seconds(0));
    if (delta) again += delta->text;
  }
  expect(again == text, "polling gives the same text");
  expect(engine.generate("Hello", forty().n(2)).size() == 2, "n completions are generated");
  std::vector<skipdec::Request> mixed = engine.submit_many({"Hello", {5, 6}}, forty());
  for (skipdec::Request& each : mixed) each.wait();
  expect(mixed.size() == 2 && mixed[0].completion().text == text &&
             mixed[1].prompt_token_ids() == std::vector<std::int64_t>{5, 6},
         "a call takes texts and token ids together");
}

void callbacks(skipdec::Engine& engine) {
  int num_calls = 0;
  skipdec::Request thrown = engine.submit("Hello", forty().on_delta([&](const auto&) -> bool {
    ++num_calls;
    throw std::runtime_error("from a callback");
  }));
  bool is_caught = false;
  try {
    thrown.wait();
  } catch (const std::runtime_error& error) {
    is_caught = std::string(error.what()) == "from a callback";
  }
  expect(is_caught, "wait rethrows what a callback throws");
  expect(num_calls == 1, "a callback that threw is not called again");
  expect(thrown.completion().finish_reason == "abort", "a callback that threw cancels its request");

  std::optional<skipdec_status> waiting;
  skipdec::Request waited = engine.submit("Hello", forty());
  skipdec::Request waiter = engine.submit("Hello", forty().on_delta([&](const auto&) {
    if (!waiting) waiting = refusal([&waited] { waited.wait(); });
    return true;
  }));
  waiter.wait();
  expect(waiting == SKIPDEC_USAGE, "waiting is refused within a callback");

  int count = 0;
  skipdec::Request ended =
      engine.submit("Hello", forty().on_delta([&count](const auto&) { return ++count < 3; }));
  ended.wait();
  expect(ended.completion().finish_reason == "abort", "a callback's false cancels its request");

  std::optional<skipdec_status> closing;
  skipdec::Request closer = engine.submit("Hello", forty().on_delta([&](const auto&) {
    if (!closing) closing = refusal([&engine] { engine.close(); });
    return true;
  }));
  closer.wait();
  expect(closing == SKIPDEC_USAGE, "closing is refused within a callback");
  expect(engine.generate("Hello").size() == 1, "a refused close leaves the engine usable");
}

// A callback destroys its own request and then still uses what it captured.
void destruction_by_callback(skipdec::Engine& engine) {
  auto held = std::make_shared<std::optional<skipdec::Request>>();
  auto is_over = std::make_shared<bool>(false);
  skipdec::Params params = forty();
  params.on_delta([held, is_over, keeper = std::string(100, 'x')](const auto&) {
    if (held->has_value()) {
      held->reset();
      *is_over = keeper.size() == 100;
    }
    return true;
  });
  // The callback of ``params`` runs after this one, so ``held`` contains its request by then.
  skipdec::Request first = engine.submit("Hello", forty().on_delta([&](const auto&) {
    if (!held->has_value() && !*is_over) held->emplace(engine.submit("Hello", params));
    return true;
  }));
  first.wait();
  engine.drain();
  expect(*is_over, "a callback may destroy its own request");
}

// A C callback throws a C++ exception.
void c_callbacks(skipdec::Engine& engine) {
  skipdec_params params;
  skipdec_params_init(&params, sizeof params);
  params.callback = [](void*, const skipdec_delta*) -> int { throw 7; };
  skipdec_request* request = nullptr;
  expect(skipdec_submit_text(engine.get(), "Hello", &params, &request) == SKIPDEC_OK &&
             skipdec_request_wait(request, -1) == SKIPDEC_OK,
         "a request ends whose C callback throws");
  const skipdec_completion* completion = nullptr;
  expect(skipdec_request_completion(request, 0, &completion) == SKIPDEC_OK &&
             std::string(completion->finish_reason) == "error",
         "a request whose C callback throws has failed");
  skipdec_request_release(request);
  expect(engine.generate("Hello").size() == 1, "an engine goes on after a C callback threw");
}

// Records which thread freed it.
struct Witness {
  explicit Witness(std::thread::id& seen) : freed_by(seen) {}
  Witness(const Witness&) = delete;
  Witness& operator=(const Witness&) = delete;
  ~Witness() { freed_by = std::this_thread::get_id(); }
  std::thread::id& freed_by;
};

// The engine's thread may be in the callback of a request until the request is released. If an
// assignment dropped the callback before that, the engine's thread would free it after the call.
void assignments(skipdec::Engine& engine) {
  std::thread::id freed_by;
  std::atomic<bool> is_called{false}, is_assigning{false};
  skipdec::Request request = engine.submit(
      "Hello", forty().on_delta([&, witness = std::make_shared<Witness>(freed_by)](const auto&) {
        is_called = true;
        while (!is_assigning) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        return true;
      }));
  while (!is_called) std::this_thread::yield();
  is_assigning = true;
  request = engine.submit("Hello", forty());
  expect(freed_by == std::this_thread::get_id(), "an assignment releases, then frees the callback");
  expect(request.wait() && request.completion().token_ids.size() == 40,
         "an assignment keeps the new request");
  skipdec::Request moved = std::move(request);
  request = std::move(moved);
  expect(request.completion().token_ids.size() == 40, "a request moves there and back");
}

void handles(const std::string& bundle) {
  skipdec::Engine first(bundle);
  skipdec::Engine engine = std::move(first);
  expect(refusal([&first] { first.generate("Hello"); }) == SKIPDEC_USAGE,
         "an engine that was moved from refuses calls");
  const std::string zero("a\0b", 3);
  expect(refusal([&] { engine.submit(zero); }) == SKIPDEC_USAGE, "a zero byte is refused");
  expect(refusal([&] { engine.submit("a", forty().schedule("7y")); }) == SKIPDEC_SCHEDULE,
         "an error has the status of its call");

  expect(problem([&] { engine.score("a", "\xff"); }).find("continuation | is no UTF-8") == 0 &&
             problem([&] { engine.encode("\xff", false); }).find("text | is no UTF-8") == 0,
         "an error names the argument that is no UTF-8");
  const std::string long_text(99999, 'a');
  expect(problem([&] { engine.score("a", long_text); }).find("positions; shorten it") < 90,
         "a continuation that is too long is to be shortened");
  const std::string text(50, 'e');
  const std::vector<std::int64_t> token_ids = engine.encode(text, false);
  expect(engine.decode(token_ids) == text, "decoding restores an encoded text");
  const skipdec::Score score = engine.score({5, 6, 7}, {8, 9});
  expect(score.logprobs.size() == 2 && score.layers.size() == 2, "a score owns its values");
  expect(engine.info().has_tokenizer && engine.stats().failed == 0,
         "an engine has information and counts");

  skipdec::Request done = engine.submit("Hello", forty());
  done.wait();
  skipdec::Request running = engine.submit("Hello", forty().max_tokens(0));
  engine.close();
  expect(done.completion().token_ids.size() == 40, "results outlive their engine");
  const std::optional<skipdec_status> end = refusal([&] {
    while (running.next()) continue;
  });
  expect(!end || end == SKIPDEC_CLOSED, "a request says that its engine was closed");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  {
    skipdec::Engine engine(argv[1], skipdec::Options().threads(1));
    ranges(engine);
    callbacks(engine);
    c_callbacks(engine);
    assignments(engine);
    destruction_by_callback(engine);
  }
  handles(argv[1]);
  return all_hold ? 0 : 1;
}
