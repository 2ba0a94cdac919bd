// The shape of a cache of keys (or values), and the size classes of its memory.
#pragma once

#include <algorithm>
#include <cstdint>

#include "bundle/manifest.h"

namespace skipdec::runtime {

// Shape of one position of one layer's key (or value) cache: [num_heads, width].
struct KVLayout {
  std::int64_t num_heads = 0;
  std::int64_t width = 0;  // W: the head size; with int8, four more bytes for the scale
  DType dtype = DType::kFloat32;

  static KVLayout of(const Manifest& manifest) {
    return {manifest.model.num_kv_heads, manifest.kv_width, manifest.kv_dtype};
  }

  // Returns the bytes of one position of one head.
  std::int64_t position_bytes() const {
    return width * static_cast<std::int64_t>(item_bytes(dtype));
  }
  // Returns the bytes of one buffer [rows, num_heads, capacity, width], limited to 2^48, which no
  // machine has, so that sums over layers do not overflow.
  std::int64_t nbytes(std::int64_t rows, std::int64_t capacity) const {
    constexpr double kMost = 0x1p48;  // below 2^53, so that smaller products are exact
    const double bytes = static_cast<double>(rows) * static_cast<double>(num_heads) *
                         static_cast<double>(capacity) * static_cast<double>(position_bytes());
    return static_cast<std::int64_t>(std::min(bytes, kMost));
  }
};

// Rounds up to one of four sizes per octave, at most 25 % more; ``least`` is a power of two.
// With least 16: 3 -> 16, 17 -> 20, 33 -> 40, 129 -> 160, 1000 -> 1024.
inline std::int64_t size_class(std::int64_t size, std::int64_t least) {
  if (size <= least) return least;
  std::int64_t step = 1;
  while (step * 8 < size) step *= 2;
  return (size + step - 1) / step * step;
}

// Returns the bytes that the pool takes for ``nbytes``: 4096 -> 4096, 4097 -> 5120, 9000 -> 10240.
inline std::int64_t pooled_size(std::int64_t nbytes) { return size_class(nbytes, 4096); }

// Rounds the rows of a buffer up to 1, 2, 4, 8, ..., at most ``most``, so that few sizes exist.
inline std::int64_t row_class(std::int64_t rows, std::int64_t most) {
  std::int64_t size = 1;
  while (size < rows) size *= 2;
  return std::min(size, most);
}

// Rounds the positions of a buffer up to four sizes per octave from 16 on, at most ``most``.
inline std::int64_t capacity_class(std::int64_t positions, std::int64_t most) {
  return std::min(size_class(positions, 16), most);
}

}  // namespace skipdec::runtime
