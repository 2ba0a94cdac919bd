// Decays: the number of layers that each generated token runs (runtime/schedule/decays).
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "schedule/fractions.h"
#include "schedule/rule.h"

namespace skipdec::runtime {
namespace {

constexpr double kPi = 3.14159265358979323846;
constexpr std::int64_t kLargestExactPower = 16;

// A natural number of up to 448 bits, enough for a product of 16 horizons, layers and a factor.
class Natural {
 public:
  explicit Natural(std::uint32_t value) { limbs_[0] = value; }

  Natural& operator*=(std::uint32_t factor) {
    std::uint64_t carry = 0;
    for (std::uint32_t& limb : limbs_) {
      carry += std::uint64_t{limb} * factor;
      limb = static_cast<std::uint32_t>(carry);
      carry >>= 32U;
    }
    return *this;
  }

  bool operator<=(const Natural& other) const {
    return !std::lexicographical_compare(other.limbs_.rbegin(), other.limbs_.rend(),
                                         limbs_.rbegin(), limbs_.rend());
  }

 private:
  std::array<std::uint32_t, 14> limbs_{};
};

Natural power_of(std::int64_t base, std::int64_t exponent, std::int64_t factor) {
  Natural product(static_cast<std::uint32_t>(factor));
  for (std::int64_t i = 0; i < exponent; ++i) product *= static_cast<std::uint32_t>(base);
  return product;
}

std::int64_t last_of(const ScheduleRule& rule) {
  return std::max<std::int64_t>(1, rule.horizon - 1);
}

double time_of(const ScheduleRule& rule, std::int64_t index) {
  return static_cast<double>(index) / static_cast<double>(last_of(rule));
}

// Returns the budget at the fraction ``progress`` of the fall, rounded on the grid.
std::int64_t fallen(const ScheduleRule& rule, double progress) {
  return round_half_up(rule.max_exit_layer * kGrid - rule.fall() * on_grid(progress), kGrid);
}

std::int64_t linear(const ScheduleRule& rule, std::int64_t index) {
  const std::int64_t last = last_of(rule);
  return round_half_up(rule.max_exit_layer * last - rule.fall() * index, last);
}

std::int64_t cosine(const ScheduleRule& rule, std::int64_t index) {
  return fallen(rule, (1 - std::cos(kPi * time_of(rule, index))) / 2);
}

// Returns the largest budget b with max - fall * time ** power >= b - 1/2, in exact integers.
std::int64_t exact_power(const ScheduleRule& rule, std::int64_t index, std::int64_t power) {
  const Natural done = power_of(index, power, 2 * rule.fall());
  std::int64_t low = rule.min_exit_layer, high = rule.max_exit_layer;  // the smallest always fits
  while (low < high) {
    const std::int64_t budget = (low + high + 1) / 2;
    const std::int64_t room = 2 * (rule.max_exit_layer - budget) + 1;
    if (done <= power_of(last_of(rule), power, room)) {
      low = budget;
    } else {
      high = budget - 1;
    }
  }
  return low;
}

std::int64_t power(const ScheduleRule& rule, std::int64_t index) {
  const auto exponent = rule.parameters["power"].get<double>();
  const bool is_exact =
      exponent >= 1 && exponent <= kLargestExactPower && exponent == std::floor(exponent);
  return is_exact ? exact_power(rule, index, static_cast<std::int64_t>(exponent))
                  : fallen(rule, std::pow(time_of(rule, index), exponent));
}

std::int64_t exponential(const ScheduleRule& rule, std::int64_t index) {
  const auto rate = rule.parameters["rate"].get<double>();
  return fallen(rule, std::expm1(-rate * time_of(rule, index)) / std::expm1(-rate));
}

std::int64_t step(const ScheduleRule& rule, std::int64_t index) {
  const auto steps = rule.parameters["steps"].get<std::int64_t>();
  const std::int64_t level = index * steps / rule.horizon;
  return round_half_up(rule.max_exit_layer * (steps - 1) - rule.fall() * level, steps - 1);
}

std::int64_t constant(const ScheduleRule& rule, std::int64_t /*index*/) {
  return rule.max_exit_layer;
}

std::int64_t table(const ScheduleRule& rule, std::int64_t index) {
  return rule.parameters["table"][static_cast<std::size_t>(index)].get<std::int64_t>();
}

std::int64_t d3_budget(const ScheduleRule& rule, std::int64_t index) {
  const auto alpha = rule.parameters["alpha"].get<double>();
  const double value =
      static_cast<double>(rule.max_exit_layer) * std::pow(alpha, static_cast<double>(index));
  return std::max(rule.min_exit_layer, floor_of(on_grid(value), kGrid));
}

}  // namespace

const std::vector<Decay>& decays() {
  static const std::vector<Decay> all{
      {"linear", nullptr, linear}, {"cosine", nullptr, cosine},
      {"power", "power", power},   {"exponential", "rate", exponential},
      {"step", "steps", step},     {"constant", nullptr, constant},
      {"table", "table", table},   {"d3", "alpha", d3_budget}};
  return all;
}

}  // namespace skipdec::runtime
