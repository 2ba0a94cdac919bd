#include "operators/team.h"

#include <unistd.h>

#include <algorithm>
#include <map>

#include "processor/standard_floats.h"

#if defined(__linux__)
#include <sched.h>
#endif

namespace skipdec {
namespace {

using std::chrono::microseconds;

// Bridges the gap between two steps, because waking a sleeping thread takes tens of microseconds.
// Python takes up to 0.7 ms to draw tokens, check drafts, and decide about the next ones. Beside
// two busy processes on two cores, 3 ms take 1.6 times as long as 1 ms: a thread must not spin away
// its turn.
constexpr microseconds kHelperSpins{1000};
// A task takes tens of microseconds; a thread that takes longer has lost its core, perhaps to the
// caller.
constexpr microseconds kCallerSpins{20};
// Shorter than the time after which the system takes a core away. A thread that gives its core up
// itself has no task for which others wait, and gets as much time.
constexpr microseconds kTurn{1000};

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int current_core() {
#if defined(__linux__)
  return sched_getcpu();
#else
  return -1;
#endif
}

// Moves the calling thread from ``core`` to another that it may use, if there is one, because the
// system may leave two busy threads on one core beside an idle core for tenths of a second.
void leave([[maybe_unused]] int core) {
#if defined(__linux__)
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  cpu_set_t others = allowed;
  CPU_CLR(static_cast<std::size_t>(core), &others);
  if (sched_setaffinity(0, sizeof(others), &others) != 0) return;
  sched_setaffinity(0, sizeof(allowed), &allowed);
#endif
}

// Teams by their numbers of threads. Never freed: sessions may outlive static objects.
struct Registry {
  std::mutex mutex;
  std::map<int, Team*> teams;
};

Registry& registry() {
  static auto& made = *std::make_unique<Registry>().release();
  return made;
}

}  // namespace

Team::Membership Team::of(int threads) {
  Registry& all = registry();
  const std::scoped_lock lock(all.mutex);
  Team*& found = all.teams[threads];
  if (found == nullptr || found->process_ != getpid())
    found = std::make_unique<Team>(threads).release();
  ++found->members_;
  return Membership(found);
}

void Team::Leave::operator()(Team* team) const {
  Registry& all = registry();
  const std::scoped_lock lock(all.mutex);
  // A fork of the process does not free it, because its threads do not exist there.
  if (--team->members_ > 0 || team->process_ != getpid()) return;
  all.teams.erase(team->threads_);
  const std::unique_ptr<Team> freed(team);
}

Team::Team(int threads) : threads_(threads), process_(getpid()) {
  try {
    for (int i = 1; i < threads; ++i) helpers_.emplace_back([this] { help(); });
  } catch (...) {  // the system has no more threads
    end_helpers();
    throw;
  }
}

Team::~Team() {
  end_helpers();
  pthread_cond_destroy(&wake_);
}

void Team::end_helpers() {
  {
    const std::scoped_lock lock(mutex_);
    is_ending_ = true;
  }
  pthread_cond_broadcast(&wake_);
  for (std::thread& each : helpers_) each.join();
}

void Team::run(Task task, std::size_t tasks, void* data) {
  Work* work = threads_ == 1 ? nullptr : claim();
  if (work == nullptr) {
    for (std::size_t i = 0; i < tasks; ++i) task(data, i);
    return;
  }
  work->core.store(current_core(), std::memory_order_relaxed);
  work->tasks = tasks;
  work->task = task;
  work->data = data;
  work->unfinished.store(tasks, std::memory_order_relaxed);
  const std::uint64_t number = (work->open.load(std::memory_order_relaxed) >> 32) + 1;
  work->open.store(number << 32 | tasks);
  wake_helpers();
  std::size_t done = 0;
  while (const std::size_t some = work->run_some(threads_)) done += some;
  work->unfinished.fetch_sub(done, std::memory_order_release);
  const Clock::time_point begin = Clock::now();
  while (work->unfinished.load(std::memory_order_acquire) != 0) {
    if (Clock::now() - begin < kCallerSpins)
      pause();
    else
      std::this_thread::yield();
  }
  work->is_in_use.store(false, std::memory_order_release);
}

// Takes and runs some of the tasks, fewer as fewer are left; returns how many.
std::size_t Team::Work::run_some(int threads) {
  std::uint64_t seen = open.load(std::memory_order_acquire);
  std::size_t left = 0, some = 0;
  do {
    left = static_cast<std::uint32_t>(seen);
    if (left == 0) return 0;
    some = std::max<std::size_t>(1, left / (static_cast<std::size_t>(threads) + 1));
  } while (!open.compare_exchange_weak(seen, seen - some, std::memory_order_acquire));
  const std::size_t first = tasks - left;
  for (std::size_t i = first; i < first + some; ++i) task(data, i);
  return some;
}

Team::Work* Team::claim() {
  for (Work& work : works_)
    if (!work.is_in_use.exchange(true, std::memory_order_acquire)) return &work;
  return nullptr;
}

void Team::wake_helpers() {
  if (sleepers_.load() == 0) return;
  {
    const std::scoped_lock lock(mutex_);
    sleepers_ = 0;
  }
  pthread_cond_broadcast(&wake_);
}

// The main loop of the other threads, until the team ends.
void Team::help() {
  const StandardFloats standard;  // regardless of the thread that created this one
  do {
    Clock::time_point turn = Clock::now(), worked = turn;
    while (Clock::now() - worked < kHelperSpins) {
      bool has_worked = false;
      for (Work& work : works_) has_worked |= help_with(work, turn);
      if (has_worked)
        worked = Clock::now();
      else
        for (int i = 0; i < 8; ++i) pause();
    }
  } while (sleep());
}

// Runs tasks until none is left or the thread's turn, which began at ``turn``, is over; returns
// false if there were no tasks.
bool Team::help_with(Work& work, Clock::time_point& turn) const {
  if (!work.has_tasks()) return false;
  const int core = current_core();
  if (core >= 0 && core == work.core.load(std::memory_order_relaxed)) leave(core);
  std::size_t done = 0;
  bool is_over = false;
  while (!is_over) {
    const std::size_t some = work.run_some(threads_);
    if (some == 0) break;
    done += some;
    is_over = Clock::now() - turn >= kTurn;
  }
  if (done == 0) return false;
  work.unfinished.fetch_sub(done, std::memory_order_release);
  if (is_over) {
    std::this_thread::yield();
    turn = Clock::now();
  }
  return true;
}

// Waits for tasks; returns false if the team ends.
bool Team::sleep() {
  const std::scoped_lock lock(mutex_);
  ++sleepers_;  // before looking for tasks: those that it misses wake this thread
  const bool has_tasks =
      std::any_of(works_.begin(), works_.end(), [](const Work& work) { return work.has_tasks(); });
  if (!has_tasks && !is_ending_) pthread_cond_wait(&wake_, mutex_.native_handle());
  return !is_ending_;
}

}  // namespace skipdec
