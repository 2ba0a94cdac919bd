// Quantises rows of floats to codes and scales, with the Vector of the including file.
//
// The file's Layout places the codes:
//   static std::size_t bytes(rows, padded_depth);           // of all codes
//   static std::uint8_t* place(codes, row, k, padded_depth);  // of 64 codes, k a multiple of 64
//   static void store(const std::uint8_t (&codes)[64], std::uint8_t* to);
#pragma once

namespace skipdec {
namespace {

// Returns the largest magnitude of ``count`` floats, or NaN if they are not all finite.
inline float peak_of(const float* values, std::int64_t count) {
  const Vector zero = Vector::broadcast(0.0F);
  Vector peak = zero, poison = zero;
  const auto see = [&](Vector v) {
    peak = max(abs(v), peak);    // the second if the first is NaN
    poison = poison + v * zero;  // stays NaN once a v is not finite
  };
  std::int64_t k = 0;
  for (; k + Vector::kLanes <= count; k += Vector::kLanes) see(Vector::load(values + k));
  if (k < count) see(load_first(values + k, static_cast<int>(count - k)));
  return maximum(peak) + sum(poison);
}

// Computes 64 codes from ``count`` floats; the rest are codes of 0.
inline void round_to_codes(const float* values, std::int64_t count, Vector scale,
                           std::uint8_t (&codes)[kDepthMultiple]) {
  for (std::int64_t k = 0; k < kDepthMultiple; k += Vector::kLanes) {
    const std::int64_t left = std::clamp<std::int64_t>(count - k, 0, Vector::kLanes);
    const Vector v = left == Vector::kLanes ? Vector::load(values + k)
                     : left == 0            ? Vector::broadcast(0.0F)
                                            : load_first(values + k, static_cast<int>(left));
    // Of one vector at a time, because loads of more than one store wait for all of them.
    std::int8_t rounded[Vector::kLanes];
    (v / scale).store(rounded);
    for (int lane = 0; lane < Vector::kLanes; ++lane) {
      codes[k + lane] = static_cast<std::uint8_t>(rounded[lane] ^ 0x80);  // + 128
    }
  }
}

template <class Layout>
void quantize(const IntegerWeights& weights, const IntegerRows& rows, std::int64_t begin,
              std::int64_t end) noexcept {
  for (std::int64_t row = begin; row < end; ++row) {
    const float* values = rows.values + row * rows.depth;
    const float scale = peak_of(values, rows.depth) / 127.0F;
    rows.scale[row] = scale;
    // With a scale of 0 or NaN, the codes do not matter, but must not be undefined.
    const Vector divisor = Vector::broadcast(scale > 0.0F ? scale : 1.0F);
    for (std::int64_t k = 0; k < weights.padded_depth; k += kDepthMultiple) {
      std::uint8_t codes[kDepthMultiple];
      round_to_codes(values + k, rows.depth - k, divisor, codes);
      Layout::store(codes, Layout::place(rows.codes, row, k, weights.padded_depth));
    }
  }
}

}  // namespace
}  // namespace skipdec
