// skipdec-run: `skipdec generate`, without Python.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <optional>
#include <skipdec/skipdec.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "deltas.h"
#include "results.h"
#include "run_options.h"

namespace skipdec::apps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxPrompt = std::size_t{16} << 20;  // bytes
constexpr Seconds kPatience{0.05};                         // interval between checks for a signal

std::atomic<int> received{0};  // number of the last signal

void interrupt(int number) { received = number; }

// Installs handlers: the first signal ends running requests and keeps their output, the second one
// ends the program.
void catch_signals() {
  struct sigaction action{};
  action.sa_handler = interrupt;
  action.sa_flags = SA_RESETHAND;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);  // write() reports EPIPE instead
}

int exit_code(skipdec_status status) {
  switch (status) {
    case SKIPDEC_USAGE:
    case SKIPDEC_SCHEDULE:
    case SKIPDEC_CAPACITY:
      return 2;
    case SKIPDEC_ENVIRONMENT:
      return 3;
    default:
      return 1;
  }
}

Error usage_error(const std::vector<std::string>& problems) {
  std::string text = "skipdec-run | ";
  if (problems.size() == 1) return {SKIPDEC_USAGE, text + problems.front()};
  text += std::to_string(problems.size()) + " problems:";
  for (const std::string& problem : problems) text += "\n  - " + problem;
  return {SKIPDEC_USAGE, text};
}

Error unwritable(int error) {
  return {SKIPDEC_ENGINE, std::string("stdout | can't be written (") + std::strerror(error) + ")"};
}

// Reads standard input without one trailing line feed.
std::string read_stdin() {
  std::string text;
  char part[65536];
  while (const std::size_t count = std::fread(part, 1, sizeof part, stdin)) {
    text.append(part, count);
    if (text.size() > kMaxPrompt) {
      throw Error(SKIPDEC_USAGE, "stdin | is longer than 16 MiB; give a shorter prompt");
    }
  }
  if (std::ferror(stdin) != 0) {
    throw Error(SKIPDEC_USAGE,
                std::string("stdin | can't be read (") + std::strerror(errno) + "); give a prompt");
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  if (!text.empty() && text.back() == '\r') text.pop_back();
  if (text.empty()) throw Error(SKIPDEC_USAGE, "stdin | is empty; give a prompt");
  return text;
}

class Run {
 public:
  explicit Run(const RunOptions& options)
      : options_(options), engine_(options.bundle, options.engine), info_(engine_.info()) {}

  // Generates for ``prompts`` and all token ids, and prints the output. Returns the exit code.
  int operator()(const std::vector<std::string>& prompts) {
    if (!info_.warning.empty()) say("warning: " + info_.warning);
    catch_signals();
    start_ = Clock::now();
    for (const std::string& prompt : prompts) submit(prompt);
    for (const auto& token_ids : options_.token_ids) submit(token_ids);
    follow();
    seconds_ = std::chrono::duration<double>(Clock::now() - start_).count();
    if (!options_.stream) {
      options_.as_json ? print_document() : print_texts(prompts);
    } else if (!options_.as_json) {
      write("\n");
    }
    say(summary());
    if (!failure_.empty()) throw Error(SKIPDEC_ENGINE, failure_);
    if (write_error_ == 0) return 0;
    if (write_error_ == EPIPE) return 1;  // the reader has closed the pipe
    throw unwritable(write_error_);
  }

 private:
  template <class Prompt>
  void submit(const Prompt& prompt) {
    const std::size_t place = requests_.size();
    Params params = options_.params;
    params.on_delta([this, place](const Delta& delta) {
      deltas_.add({place, delta});
      return true;
    });
    requests_.push_back(engine_.submit(prompt, params));
  }

  // Prints deltas until all completions have ended.
  void follow() {
    auto num_running = static_cast<std::int64_t>(requests_.size()) * options_.n;
    bool is_cancelled = false;
    while (num_running > 0) {
      const bool is_over = received != 0 || write_error_ != 0;
      if (is_over && !std::exchange(is_cancelled, true)) {
        for (Request& request : requests_) request.cancel();
      }
      const std::optional<Deltas::Entry> entry = deltas_.next(kPatience);
      if (!entry) continue;
      const Delta& delta = entry->delta;
      if (options_.stream) print_delta(*entry);
      num_tokens_ += delta.token_ids.size();
      if (!delta.finish_reason) continue;
      --num_running;
      num_finished_ += *delta.finish_reason == "abort" ? 0 : 1;
      num_cut_ += *delta.finish_reason == "length" ? 1 : 0;
      if (*delta.finish_reason == "error")
        failure_ = delta.stop_reason.value_or("an engine failed");
    }
    for (Request& request : requests_) request.wait();
  }

  void print_delta(const Deltas::Entry& entry) {
    const Delta& delta = entry.delta;
    if (!options_.as_json) {
      write(info_.has_tokenizer ? delta.text : listed(delta.token_ids));
      return;
    }
    Json line = {{"id", entry.request},
                 {"index", delta.index},
                 {"text", delta.text},
                 {"token_ids", delta.token_ids},
                 {"finish_reason", json_of(delta.finish_reason)},
                 {"layers", delta.layers}};
    if (has_drafts()) line["drafted"] = delta.drafted;
    write(line.dump() + "\n");
  }

  // Prints a single completion as it is, and several with a heading each, which has the prompt, if
  // there are several prompts, and the completion's number.
  void print_texts(const std::vector<std::string>& prompts) {
    if (requests_.size() == 1 && options_.n == 1) {
      write(text_of(requests_.front().completion()) + "\n");
      return;
    }
    for (std::size_t place = 0; place < requests_.size(); ++place) {
      const std::string prompt = place < prompts.size()
                                     ? prompts[place]
                                     : listed(options_.token_ids[place - prompts.size()]);
      for (std::int64_t index = 0; index < options_.n; ++index) {
        std::string text = "#";
        if (requests_.size() > 1) text.append(" ").append(prompt);
        if (options_.n > 1) text.append(" [").append(std::to_string(index)).append("]");
        text.append("\n").append(text_of(requests_[place].completion(index))).append("\n\n");
        write(text);
      }
    }
  }

  // Returns the token ids if there is no tokenizer.
  std::string text_of(const Completion& completion) const {
    return info_.has_tokenizer ? completion.text : listed(completion.token_ids);
  }

  void print_document() {
    Json results = Json::array();
    for (std::size_t place = 0; place < requests_.size(); ++place) {
      results.push_back(
          json_of(place, requests_[place], engine_, info_.has_tokenizer, has_drafts()));
    }
    const std::optional<double> depth = realised_depth();
    Json document = {{"schedule", requests_.front().schedule()},
                     {"horizon", horizon()},
                     {"num_layers", info_.num_layers},
                     {"realised_depth", depth ? Json(*depth) : Json(nullptr)},
                     {"completions", num_finished_},
                     {"tokens", num_tokens_},
                     {"seconds", seconds_},
                     {"tokens_per_second", static_cast<double>(num_tokens_) / seconds_},
                     {"kernels", info_.description}};
    if (has_drafts()) document["drafts"] = drafts();
    document["results"] = results;
    write(document.dump(2) + "\n");
  }

  bool has_drafts() const { return !info_.draft.empty(); }

  // Returns the figures of the drafts of all completions.
  Json drafts() const {
    std::int64_t passes = 0, drafted = 0, accepted = 0;
    for (const Request& request : requests_) {
      for (const Completion& completion : request.completions()) {
        passes += completion.passes;
        drafted += completion.drafted;
        accepted += completion.accepted;
      }
    }
    const auto ratio = [](std::int64_t part, std::int64_t whole) {
      return whole > 0 ? Json(static_cast<double>(part) / static_cast<double>(whole)) : Json();
    };
    return {{"draft", info_.draft},
            {"passes", passes},
            {"drafted", drafted},
            {"accepted", accepted},
            {"tokens_per_pass", ratio(passes + accepted, passes)},
            {"acceptance", ratio(accepted, drafted)}};
  }

  // Returns the mean number of layers over all output tokens except the first of each completion.
  std::optional<double> realised_depth() const {
    std::int64_t layers = 0, tokens = 0;
    for (const Request& request : requests_) {
      for (const Completion& completion : request.completions()) {
        for (std::size_t token = 1; token < completion.layers.size(); ++token) {
          layers += completion.layers[token];
          ++tokens;
        }
      }
    }
    if (tokens == 0) return std::nullopt;
    return static_cast<double>(layers) / static_cast<double>(tokens);
  }

  // Returns the horizon in the schedule's text; 1 for a schedule without one, like full.
  std::int64_t horizon() const {
    constexpr std::string_view kName = "horizon=";
    const std::string schedule = requests_.front().schedule();
    const std::size_t found = schedule.find(kName);
    return found == std::string::npos ? 1 : std::stoll(schedule.substr(found + kName.size()));
  }

  // Summarises the run in two lines; a third explains texts that --max-tokens ended by default.
  std::string summary() const {
    std::ostringstream text;
    const std::string schedule = requests_.front().schedule();
    text << std::fixed << "schedule " << schedule;
    if (schedule != "full") text << ", horizon " << horizon();
    if (const std::optional<double> depth = realised_depth()) {
      text << ", realised depth " << std::setprecision(2) << *depth << " of " << info_.num_layers
           << " layers";
    }
    text << '\n'
         << num_tokens_ << (num_tokens_ == 1 ? " token in " : " tokens in ") << std::setprecision(2)
         << seconds_ << " s, " << std::setprecision(1)
         << static_cast<double>(num_tokens_) / seconds_ << " tokens/s, prompts included, on "
         << info_.description;
    if (has_drafts()) text << drafts_summary();
    if (num_cut_ > 0 && !options_.has_max_tokens && !options_.is_chat) {
      text << '\n'
           << num_cut_ << " of " << num_finished_
           << " texts end at --max-tokens, which is 16 unless given; 0 is as many as fit";
    }
    return text.str();
  }

  // Returns a line on drafts; "" before the first pass.
  std::string drafts_summary() const {
    const Json figures = drafts();
    if (figures["tokens_per_pass"].is_null()) return "";
    std::ostringstream text;
    text << std::fixed << std::setprecision(2) << "\ndraft " << info_.draft << ": "
         << figures["tokens_per_pass"].get<double>() << " tokens per pass";
    if (!figures["acceptance"].is_null()) {
      text << ", " << std::setprecision(0) << 100 * figures["acceptance"].get<double>() << "% of "
           << figures["drafted"].get<std::int64_t>() << " drafted tokens right";
    }
    return text.str();
  }

  static std::string listed(const std::vector<std::int64_t>& token_ids) {
    std::string text;
    for (const std::int64_t id : token_ids) text += std::to_string(id) + " ";
    return text;
  }

  void write(const std::string& text) {
    if (write_error_ != 0) return;
    const bool is_written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
    if (!is_written || std::fflush(stdout) != 0) write_error_ = errno;
  }

  void say(const std::string& text) const {
    if (!options_.quiet) std::cerr << text << '\n';
  }

  const RunOptions& options_;
  Deltas deltas_;  // outlives the requests, which add to it
  Engine engine_;
  Info info_;
  std::vector<Request> requests_;
  Clock::time_point start_;
  double seconds_ = 0;
  std::size_t num_tokens_ = 0, num_finished_ = 0, num_cut_ = 0;
  int write_error_ = 0;  // errno of stdout
  std::string failure_;
};

int run(const std::vector<std::string>& arguments) {
  RunOptions options;
  const std::vector<std::string> problems = read_options(arguments, options);
  if (!problems.empty()) throw usage_error(problems);
  if (options.help || options.version) {
    std::cout << (options.help ? usage() : "skipdec-run " + std::string(skipdec_version()) + "\n")
              << std::flush;
    if (!std::cout) throw unwritable(errno);
    return 0;
  }
  std::vector<std::string> prompts = options.texts;
  if (prompts.empty() && options.token_ids.empty()) {
    if (isatty(STDIN_FILENO) != 0) {
      throw usage_error({"give a prompt, by -p or after the bundle"});
    }
    prompts.emplace_back("-");
  }
  for (std::string& prompt : prompts) {
    if (prompt == "-") prompt = read_stdin();
  }
  options.engine.max_waiting(static_cast<std::int32_t>(
      std::max<std::size_t>(256, prompts.size() + options.token_ids.size())));
  return Run(options)(prompts);
}

}  // namespace
}  // namespace skipdec::apps

int main(int argc, char** argv) {
  using namespace skipdec::apps;
  // Once loaded, ONNX Runtime would collect facts about process and machine for Microsoft.
  ::setenv("ORT_DISABLE_TELEMETRY", "1", 0);  // NOLINT(concurrency-mt-unsafe): no threads yet
  int code = 0;
  try {
    code = run(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const skipdec::Error& error) {
    std::cerr << "error: " << error.what() << '\n';
    code = exit_code(error.status());
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << '\n';
    code = 1;
  }
  if (received != 0) {
    std::cerr << "interrupted\n";
    return 128 + received;
  }
  return code;
}
