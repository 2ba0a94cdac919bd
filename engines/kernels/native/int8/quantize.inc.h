// Quantises rows of floats to codes and scales with the Vector of the including file.
//
// The file's Layout places the codes:
//   static std::size_t bytes(rows, padded_depth);           // of all codes
//   static std::uint8_t* place(codes, row, k, padded_depth);  // of 64 codes, k a multiple of 64
//   static void store(const std::uint8_t (&codes)[64], std::uint8_t* to);
#pragma once

namespace skipdec {
namespace {

// Computes 64 codes from ``count`` floats; the rest are codes of 0.
inline void round_to_codes(const float* values, std::int64_t count, Vector scale,
                           std::uint8_t (&codes)[kDepthMultiple]) {
  for (std::int64_t k = 0; k < kDepthMultiple; k += Vector::kLanes) {
    const Vector v =
        k < count ? load_up_to(values + k, lanes_of(count - k)) : Vector::broadcast(0.0F);
    // One vector at a time, because a load that spans several stores waits for all of them.
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
