// Queries and keys of new tokens before attention: each head is normalised, then rotated.
#pragma once

#include "norms/inverse_root.inc.h"

namespace skipdec::attention {
namespace {

// Computes y = x · weight / sqrt(mean(x²) + epsilon) for a head of D elements.
inline void normalize_head(const Call& call, const float* weight, const float* x, float* y) {
  const Chunks chunks(call.head_size);
  Vector squares = Vector::broadcast(0.0F);
  for (int c = 0; c < chunks.count; ++c) {
    const Vector each = chunks.load(x, c);
    squares = multiply_add(each, each, squares);
  }
  const Vector factor = Vector::broadcast(
      inverse_root(sum(squares), static_cast<float>(call.head_size), call.norm_epsilon));
  for (int c = 0; c < chunks.count; ++c) {
    chunks.store(chunks.load(x, c) * factor * chunks.load(weight, c), y, c);
  }
}

// Rotates the pairs (x[i], x[i + R/2]) of a head's first R elements and copies the others; y may be
// x. ``directions`` are the pairs' cosines, then their sines.
inline void rotate_head(const Call& call, const float* directions, const float* x, float* y) {
  const std::int64_t pairs = call.rotation.pairs;
  for (std::int64_t i = 0; i < pairs; i += Vector::kLanes) {
    const int lanes = lanes_of(pairs - i);
    const auto load = [&](const float* from) { return load_up_to(from + i, lanes); };
    const Vector first = load(x), second = load(x + pairs);
    const Vector cosine = load(directions), sine = load(directions + pairs);
    store_up_to(first * cosine - second * sine, y + i, lanes);
    store_up_to(second * cosine + first * sine, y + pairs + i, lanes);
  }
  const std::int64_t rest = call.head_size - 2 * pairs;
  if (x != y && rest > 0) {
    std::memcpy(y + 2 * pairs, x + 2 * pairs, static_cast<std::size_t>(rest) * sizeof(float));
  }
}

// Writes the normalised and rotated head ``x`` of ``token`` (b·S + s) to ``y``. ``weight`` is the
// norm's, or nullptr.
__attribute__((noinline)) void change_head(const Call& call, const float* weight,
                                           std::int64_t token, const float* x, float* y) {
  if (weight != nullptr) {
    normalize_head(call, weight, x, y);
    x = y;
  }
  if (call.directions != nullptr) {
    rotate_head(call, call.directions + token * 2 * call.rotation.pairs, x, y);
  }
}

// Returns true if change_head does anything.
inline bool changes_heads(const Call& call, const float* weight) {
  return weight != nullptr || call.directions != nullptr;
}

}  // namespace
}  // namespace skipdec::attention
