#include "rotation/rotation.h"

#include <cstring>

namespace skipdec {
namespace {

struct Direction {
  double cosine, sine;
};

// Returns the cosine and sine of ``angle``, at most 2^25, by polynomials on [-π/4, π/4], fitted
// within 2e-14. π/2 is subtracted in two parts, of which the first has 27 bits, so that its product
// with a number of quarter turns is exact.
inline Direction direction_of(double angle) {
  constexpr double kRounding = 0x1.8p52;  // adding it leaves an integer in the lowest bits
  const double biased = angle * 0x1.45f306dc9c883p-1 + kRounding;
  const double turns = biased - kRounding;
  const double r = (angle - turns * 0x1.921fb54p+0) - turns * 0x1.10b4611a62633p-30;
  const double z = r * r;
  double p = -0x1.aa262ee715b00p-26;
  p = p * z + 0x1.71d9a549ac8fbp-19;
  p = p * z - 0x1.a019fd95094bep-13;
  p = p * z + 0x1.1111110fd1496p-7;
  p = p * z - 0x1.5555555555161p-3;
  const double sine = r + r * z * p;
  double q = 0x1.1c808728603bbp-29;
  q = q * z - 0x1.27e25ca05d2bep-22;
  q = q * z + 0x1.a019ff501e5c1p-16;
  q = q * z - 0x1.6c16c16b5fdb7p-10;
  q = q * z + 0x1.5555555555434p-5;
  const double cosine = (1.0 - 0.5 * z) + z * z * q;
  std::uint64_t quarter = 0;
  std::memcpy(&quarter, &biased, sizeof quarter);
  const bool is_odd = (quarter & 1U) != 0;
  const double x = is_odd ? sine : cosine;
  const double y = is_odd ? cosine : sine;
  return {((quarter + 1U) & 2U) != 0 ? -x : x, (quarter & 2U) != 0 ? -y : y};
}

}  // namespace

void write_rotation(const Rotation& rotation, const std::int64_t* write_indices,
                    std::int64_t tokens, std::int64_t begin, std::int64_t end,
                    float* table) noexcept {
  const auto scale = static_cast<double>(rotation.scale);
  for (std::int64_t token = begin; token < end; ++token) {
    const std::int64_t position = write_indices[token / tokens] + token % tokens;
    float* cosines = table + token * 2 * rotation.pairs;
    float* sines = cosines + rotation.pairs;
    for (std::int64_t i = 0; i < rotation.pairs; ++i) {
      const float angle = static_cast<float>(position) * rotation.rates[i];
      const Direction direction = direction_of(static_cast<double>(angle));
      cosines[i] = static_cast<float>(direction.cosine * scale);
      sines[i] = static_cast<float>(direction.sine * scale);
    }
  }
}

}  // namespace skipdec
