// Quantises rows of floats block by block, with the Vector of the including file.
#pragma once

namespace skipdec {
namespace {

// Returns 0, or NaN if ``count`` floats are not all finite.
inline float poison_of(const float* values, std::int64_t count) {
  const Vector zero = Vector::broadcast(0.0F);
  Vector poison = zero;
  for (std::int64_t k = 0; k < count; k += Vector::kLanes) {
    poison = multiply_add(load_up_to(values + k, lanes_of(count - k)), zero, poison);
  }
  return sum(poison);
}

// Returns lanes k … k + 15 of a block of ``count`` floats, with zeros beyond them.
inline Vector load_lanes(const float* values, std::int64_t k, std::int64_t count) {
  return k < count ? load_up_to(values + k, lanes_of(count - k)) : Vector::broadcast(0.0F);
}

// Writes a block's codes, and their sum times −``kZeroCode``, the kernel's code of a weight of 0,
// and returns the block's scale. ``poison`` is `poison_of` the row.
template <int kZeroCode>
inline float quantize_block(const float* values, std::int64_t count, std::int64_t block_size,
                            float poison, std::int8_t* codes, std::int32_t& correction) {
  constexpr float kLeast = 0x1p-126F;  // smallest value with a finite reciprocal
  Vector peak = Vector::broadcast(0.0F);
  for (std::int64_t k = 0; k < block_size; k += Vector::kLanes) {
    peak = max(abs(load_lanes(values, k, count)), peak);
  }
  const float quotient = maximum(peak) / 127.0F;
  const float scale = quotient < kLeast ? 0.0F : quotient;
  const Vector inverse = Vector::broadcast(scale > 0.0F ? 1.0F / scale : 0.0F);
  Vector sums = Vector::broadcast(0.0F);  // of integers, so exact
  for (std::int64_t k = 0; k < block_size; k += Vector::kLanes) {
    // One vector at a time, because a load that spans several stores waits for all of them.
    std::int8_t rounded[Vector::kLanes];
    (load_lanes(values, k, count) * inverse).store(rounded);
    std::memcpy(codes + k, rounded, sizeof rounded);
    if constexpr (kZeroCode != 0) sums = sums + Vector::load(rounded);
  }
  correction = -kZeroCode * static_cast<std::int32_t>(sum(sums));
  return scale + poison;
}

template <int kZeroCode>
void quantize(const BlockWeights& weights, const BlockRows& rows, std::int64_t begin,
              std::int64_t end) noexcept {
  for (std::int64_t group = begin; group < end; ++group) {
    const std::int64_t together = rows.rows_of(group);
    for (std::int64_t row = 0; row < together; ++row) {
      const float* values = rows.values + (group * rows.group + row) * rows.depth;
      const float poison = poison_of(values, rows.depth);
      for (std::int64_t block = 0; block < weights.blocks; ++block) {
        const std::int64_t k = block * weights.block_size;
        const std::int64_t place = group * rows.group * weights.blocks + block * together + row;
        rows.scale[place] = quantize_block<kZeroCode>(
            values + k, rows.depth - k, weights.block_size, poison,
            rows.codes + place * weights.block_size, rows.correction[place]);
      }
    }
  }
}

}  // namespace
}  // namespace skipdec
