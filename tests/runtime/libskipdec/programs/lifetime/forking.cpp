// forking BUNDLE: tests child processes whose parent runs, or has run, an engine. Prints one line
// about the end of each child, and kills a child that hangs.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <skipdec/skipdec.hpp>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience{30};

std::string end_of(pid_t child) {
  const Clock::time_point deadline = Clock::now() + kPatience;
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (Clock::now() > deadline) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return "hangs";
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return WIFEXITED(status) ? "exits with " + std::to_string(WEXITSTATUS(status))
                           : "is ended by signal " + std::to_string(WTERMSIG(status));
}

// Runs ``work`` in a child that calls exit() with its return value, or with the status of an Error.
void fork_for(const char* name, const std::function<int()>& work) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    int code = 0;
    try {
      code = work();
    } catch (const skipdec::Error& error) {
      std::printf("%s: %s\n", name, error.what());
      code = 100 + static_cast<int>(error.status());
    }
    std::exit(code);
  }
  const std::string end = end_of(child);
  std::printf("%s %s\n", name, end.c_str());
}

skipdec::Engine opened(const char* bundle) {
  return skipdec::Engine(bundle, skipdec::Options().threads(2).kv_memory(1 << 20));
}

skipdec::Request submitted(skipdec::Engine& engine) {
  const auto params = skipdec::Params().temperature(0).ignore_eos().max_tokens(4);
  return engine.submit({5, 6, 7}, params);
}

int generated(skipdec::Engine&& engine) {
  skipdec::Request request = submitted(engine);
  request.wait();
  return static_cast<int>(request.completion().token_ids.size());
}

void run(const char* bundle) {
  fork_for("first", [&] { return generated(opened(bundle)); });
  skipdec::Engine engine = opened(bundle);
  skipdec::Request request = submitted(engine);
  fork_for("exit", [] {
    std::atexit([] { std::printf("exit: its own handler\n"); });
    return 3;
  });
  fork_for("open", [&] { return generated(opened(bundle)); });
  fork_for("submit", [&] { return submitted(engine).wait() ? 1 : 2; });
  fork_for("wait", [&] { return request.wait() ? 1 : 2; });
  fork_for("poll", [&] { return request.next(skipdec::Seconds(0)) ? 1 : 2; });
  fork_for("close", [&] { return engine.close(), 2; });
  fork_for("release", [&] {
    skipdec::Request(std::move(request));
    return 4;
  });
  if (!request.wait()) throw std::runtime_error("the parent's request is lost");
  fork_for("read", [&] { return static_cast<int>(request.completion().token_ids.size()); });
  engine.close();
  fork_for("again", [&] { return generated(opened(bundle)); });
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  try {
    run(arguments[1]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
