// Exponentially distributed numbers of tokens, with the same bits on every instruction set. Include
// after simd/begin.inc.h.
#pragma once

#include <cstdint>

namespace skipdec {
namespace {

// The first 24 bits of a uniform number, and the 24 bits after these.
struct HashKeys {
  std::uint32_t high, low;
};

inline HashKeys hash_keys(double uniform) {
  constexpr double kScale = 1 << 24;
  const double scaled = uniform * kScale;
  const auto high = static_cast<std::uint32_t>(scaled);
  return {high, static_cast<std::uint32_t>((scaled - high) * kScale)};
}

// Returns a number below 2^31. x(2x + 1), as in RC6, and x + x / 2^15 make every bit of the result
// depend on all bits of the input; devices can compute them in ONNX's operators.
inline std::uint32_t hash_of(std::uint32_t token_id, HashKeys keys) {
  constexpr std::uint32_t kMask = (1U << 31U) - 1;
  std::uint32_t x = (token_id * 0x1E3779B1U + keys.high * 0x5851F42DU) & kMask;
  x = x * (2 * x + 1) & kMask;
  x = (x + (x >> 15U) + keys.low * 0x14057B7FU) & kMask;
  x = x * (2 * x + 1) & kMask;
  x = (x + (x >> 15U)) & kMask;
  return x * (2 * x + 1) & kMask;
}

constexpr float kLeastShare = 0x1p-32F;

// Writes each token's share, uniform in (0, 1) and at least kLeastShare.
template <std::size_t kSize>
void shares_of(const std::uint32_t (&token_ids)[kSize], HashKeys keys, float (&shares)[kSize]) {
  constexpr std::uint32_t kMost = (1U << 31U) - 65;  // more would round to 2^31
  for (std::size_t i = 0; i < kSize; ++i) {
    const auto hash = static_cast<std::int32_t>(std::min(hash_of(token_ids[i], keys), kMost));
    shares[i] = (static_cast<float>(hash) + 0.5F) * 0x1p-31F;
  }
}

// Returns -log(1 - share) for share in (0, 1), within 1.3e-6 of it. 1 - share is 2^n·(1 + f) with
// 1 + f in [√½, √2), and log(1 + f) is f·(1 + f·P(f)), P fitted by least squares.
inline float exponential_of(float share) {
  constexpr std::int32_t kSqrtHalf = 0x3F3504F3, kExponent = 1 << 23;  // bits of √½, and of 2^1
  const float rest = 1.0F - share;
  std::int32_t bits;
  std::memcpy(&bits, &rest, sizeof bits);
  const std::int32_t exponent = (bits - kSqrtHalf) >> 23;
  bits -= exponent * kExponent;
  float scaled;
  std::memcpy(&scaled, &bits, sizeof scaled);
  const float small = -share, large = scaled - 1.0F;
  const float f = exponent == 0 ? small : large;
  float p = 0.119491238F;
  p = p * f - 0.185875129F;
  p = p * f + 0.20449164F;
  p = p * f - 0.249190715F;
  p = p * f + 0.333192197F;
  p = p * f - 0.500008485F;
  p = p * f + 1.0F;
  return -(static_cast<float>(exponent) * 0x1.62e43p-1F + p * f);
}

// Replaces shares by positive, exponentially distributed numbers of mean 1.
template <std::size_t kSize>
void make_exponential(float (&shares)[kSize]) {
  for (float& share : shares) share = exponential_of(share);
}

}  // namespace
}  // namespace skipdec
