// The threads of kernels.
//
// ONNX Runtime's pool makes a caller wait for every thread that has begun to help. If a core is
// busy with other work, such a thread may have no core for milliseconds, and two threads are then
// slower than one. Here a caller waits only for tasks that a thread has taken. Threads give up
// their core voluntarily, between two tasks, and keep off the caller's core.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace skipdec {

class Team {
 public:
  using Task = void (*)(void* data, std::size_t index);

  struct Leave {
    void operator()(Team* team) const;
  };
  using Membership = std::unique_ptr<Team, Leave>;

  // Returns the process's team of ``threads``, which include the caller's. The other threads end
  // with the last membership.
  static Membership of(int threads);

  explicit Team(int threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // Runs task(data, 0) … task(data, tasks - 1), each on the next free thread, and returns when all
  // are done. Any thread may call it at any time. ``task`` must not throw.
  void run(Task task, std::size_t tasks, void* data);

 private:
  using Clock = std::chrono::steady_clock;

  // The tasks of one caller.
  struct Work {
    // The upper half is a number that changes with each call; the lower half counts tasks that are
    // not taken. A thread that takes some may read the other members until it finishes them.
    alignas(64) std::atomic<std::uint64_t> open{0};
    std::size_t tasks = 0;
    Task task = nullptr;
    void* data = nullptr;
    std::atomic<int> core{-1};  // of the caller
    std::atomic<bool> is_in_use{false};
    alignas(64) std::atomic<std::size_t> unfinished{0};

    bool has_tasks() const { return static_cast<std::uint32_t>(open.load()) != 0; }
    std::size_t run_some(int threads);
  };

  Work* claim();
  void wake_helpers();
  void help();
  void end_helpers();
  bool help_with(Work& work, Clock::time_point& turn) const;
  bool sleep();

  static constexpr std::size_t kCallers = 8;  // further concurrent callers run their tasks alone

  alignas(64) std::atomic<int> sleepers_{0};
  const int threads_;
  std::vector<std::thread> helpers_;
  std::mutex mutex_;
  // libstdc++'s condition variable needs a symbol that the wheel's oldest systems lack.
  pthread_cond_t wake_ = PTHREAD_COND_INITIALIZER;
  const pid_t process_;
  int members_ = 0;
  bool is_ending_ = false;
  std::array<Work, kCallers> works_;
};

}  // namespace skipdec
