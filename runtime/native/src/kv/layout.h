// The shape of a cache of keys (or values), and the size classes of its memory.
#pragma once

#include <algorithm>
#include <cstdint>

#include "bundle/manifest.h"

namespace skipdec::runtime {

// Shape of one position of one layer's key (or value) cache: [num_heads, width].
struct KVLayout {
  std::int64_t num_heads = 0;
  std::int64_t width = 0;  // W: the head size, and a scale's four bytes beside int8 codes
  DType dtype = DType::kFloat32;

  static KVLayout of(const Manifest& manifest) {
    return {manifest.model.num_kv_heads, manifest.kv_width, manifest.kv_dtype};
  }

  // Bytes of one head's position.
  std::int64_t position_bytes() const {
    return width * static_cast<std::int64_t>(item_bytes(dtype));
  }
  // Bytes of one buffer [rows, num_heads, capacity, width].
  std::int64_t nbytes(std::int64_t rows, std::int64_t capacity) const {
    return rows * num_heads * capacity * position_bytes();
  }
};

// One of four sizes an octave, at most 25 % more; ``least``: a power of two.
// With least 16: 3 -> 16, 17 -> 20, 33 -> 40, 129 -> 160, 1000 -> 1024.
inline std::int64_t size_class(std::int64_t size, std::int64_t least) {
  if (size <= least) return least;
  std::int64_t step = 1;
  while (step * 8 < size) step *= 2;
  return (size + step - 1) / step * step;
}

// The bytes that the pool takes for a buffer of ``nbytes``: 4096 -> 4096, 4097 -> 5120, 9000 ->
// 10240.
inline std::int64_t pooled_size(std::int64_t nbytes) { return size_class(nbytes, 4096); }

// Rows of a layer's buffers: 1, 2, 4, 8, ..., at most ``most``, so that few of them are made.
inline std::int64_t row_class(std::int64_t rows, std::int64_t most) {
  std::int64_t size = 1;
  while (size < rows) size *= 2;
  return std::min(size, most);
}

// Positions of a layer's buffers: four sizes an octave from 16 on, at most ``most``.
inline std::int64_t capacity_class(std::int64_t positions, std::int64_t most) {
  return std::min(size_class(positions, 16), most);
}

}  // namespace skipdec::runtime
