// Calls a team from more threads than it serves at once; each task must run exactly once.
#include "operators/team.h"

#include <cstdio>

#include "families.h"

namespace skipdec::tests {
namespace {

constexpr int kCallers = 12, kCalls = 200;

// Runs tasks that count their runs, and returns whether each has run once.
bool runs_each_once(Team& team, std::size_t tasks) {
  std::vector<int> runs(tasks, 0);  // each is of one thread, so that sanitizers see a second
  team.run([](void* data, std::size_t i) { ++static_cast<int*>(data)[i]; }, tasks, runs.data());
  for (const int each : runs)
    if (each != 1) return false;
  return true;
}

}  // namespace

bool team() {
  bool is_right = true;
  for (const int threads : {1, 2, 3, 8}) {
    const Team::Membership shared = Team::of(threads);
    is_right = is_right && shared.get() == Team::of(threads).get();
    std::vector<int> of_callers(kCallers, 0);
    std::vector<std::thread> callers;
    for (int& is_caller_right : of_callers) {
      callers.emplace_back([&is_caller_right, &shared] {
        is_caller_right = 1;
        for (std::size_t call = 0; call < kCalls; ++call)
          if (!runs_each_once(*shared, call % 40)) is_caller_right = 0;
      });
    }
    for (std::thread& each : callers) each.join();
    for (const int each : of_callers) is_right = is_right && each == 1;
  }
  std::fprintf(stderr, "team: %s\n", is_right ? "right" : "WRONG");
  return is_right;
}

}  // namespace skipdec::tests
