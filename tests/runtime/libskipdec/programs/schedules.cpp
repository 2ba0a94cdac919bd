// schedules FILE NUM_LAYERS [POSITIONS]: reads lines "MAX_TOKENS SCHEDULE" and resolves them with
// FILE, a schedule.json. Prints the layers of generated tokens, the last index of each layer, and
// how many prompt tokens run each layer; or the error.
#include "schedule/schedules.h"

#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

namespace {

using namespace skipdec::runtime;

constexpr std::int64_t kTokens = 80;

void print(const std::vector<std::int64_t>& numbers) {
  for (const std::int64_t number : numbers) std::cout << number << ' ';
  std::cout << ';';
}

void describe(const Schedule& schedule) {
  std::cout << schedule.text() << ';' << schedule.is_reduced() << ';';
  for (std::int64_t index = 0; index < kTokens; ++index) print(schedule.plan(index));
  print(schedule.plan(1 << 20));
  std::vector<std::int64_t> last;
  for (std::int64_t layer = 0; layer < schedule.num_layers(); ++layer)
    last.push_back(schedule.last_index(layer) == Schedule::kForever ? -2
                                                                    : schedule.last_index(layer));
  print(last);
  for (const std::int64_t length : {1, 2, 3, 7, 64, 1000}) {
    print(schedule.active_lengths(length, 9));
    print({schedule.prompt_depth(0, length), schedule.prompt_depth(length / 2, length),
           schedule.prompt_depth(length - 1, length)});
  }
}

}  // namespace

int main(int count, char** words) {
  try {
    std::ifstream file(words[1], std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    const std::int64_t positions =
        count > 3 ? std::stoll(words[3]) : skipdec::constants::kMaxHorizon;
    const Schedules schedules = Schedules::parse(text, std::stoll(words[2]), words[1], positions);
    std::int64_t max_tokens = 0;
    for (std::string name; std::cin >> max_tokens && std::getline(std::cin >> std::ws, name);) {
      try {
        describe(*schedules.resolve(name == "own" ? "" : name, max_tokens));
      } catch (const std::exception& error) {
        std::cout << "error: " << error.what();
      }
      std::cout << '\n';
    }
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
