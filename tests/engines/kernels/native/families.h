// Tests of kernels without Python or ONNX Runtime, so that they can run under an emulator or a
// sanitizer. A family computes the same cases on a given instruction set, half of the work in each
// of two threads, and compares them with plain loops.
#pragma once

#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "operators/columns.h"
#include "processor/instruction_set.h"

namespace skipdec::tests {

// Digest of the bytes of all results (FNV-1a), and the first unexpected result.
class Outcome {
 public:
  // Adds results of ``expected``'s size, which may differ from it by ``tolerance`` and by the
  // share ``relative`` of its values.
  void add(const std::vector<float>& results, const std::vector<float>& expected, float tolerance,
           float relative = 0);
  std::uint64_t digest() const { return digest_; }
  bool is_right() const { return is_right_; }

 private:
  std::uint64_t digest_ = 14695981039346656037U;
  bool is_right_ = true;
};

Outcome integer_products(InstructionSet set);
Outcome block_products(InstructionSet set);
Outcome float_products(InstructionSet set);
Outcome attention(InstructionSet set);
Outcome normalization(InstructionSet set);
Outcome drawing(InstructionSet set);
bool team();

// Rows, depth and columns of a product: 1, odd numbers, complete and partial blocks.
struct Shape {
  std::int64_t rows, depth, columns;
};
constexpr Shape kShapes[] = {{1, 1, 1},     {1, 64, 16},   {2, 100, 33}, {5, 128, 48}, {8, 192, 17},
                             {13, 61, 130}, {17, 256, 64}, {33, 96, 47}, {40, 130, 80}};

// Returns how a product has ``count`` columns of results, gated or with ``activation``.
inline Columns columns_of(std::int64_t count, bool is_gated, Activation activation) {
  if (!is_gated) return {count, nullptr, activation, false};
  return {2 * count, nullptr, Activation::kSilu, true};
}

// A column's block and its place in the block, in packed weights.
struct Place {
  std::int64_t block, lane;
};
inline Place place_of(const Columns& columns, std::int64_t n) {
  if (!columns.is_gated) return {n / 16, n % 16};
  const std::int64_t half = columns.count / 2, column = n % half;
  return {column / 16 * 2 + n / half, column % 16};
}

// Returns SiLU(gate) · other for rows of ``products`` [M, N], whose first N / 2 are the gate.
std::vector<float> gated(const std::vector<float>& products, std::int64_t columns);

// Tolerances of a gated product against ``gated``, because our exp is not the library's. The first
// is relative; the second is absolute, for values at which our exp is already 0.
constexpr float kGatedTolerance = 1e-6F, kTinyGate = 1e-33F;

// Pseudo-random numbers that are the same with every standard library.
class Numbers {
 public:
  std::int64_t below(std::int64_t limit) {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<std::int64_t>(state_ >> 33U) % limit;
  }
  // Multiples of 1/256 in [-4, 4).
  std::vector<float> values(std::int64_t count) {
    std::vector<float> made(static_cast<std::size_t>(count));
    for (float& each : made) each = static_cast<float>(below(2048) - 1024) / 256.0F;
    return made;
  }

 private:
  std::uint64_t state_ = 12;
};

template <class Part>
void in_two_threads(std::int64_t size, const Part& part) {
  std::thread other([&] { part(size / 2, size); });
  part(0, size / 2);
  other.join();
}

// Multiplies the blocks of all columns; both threads begin with a gate.
template <class Part>
void blocks_in_two_threads(const Columns& columns, const Part& part) {
  const std::int64_t together = columns.is_gated ? 2 : 1;
  in_two_threads(columns.blocks() / together, [&](std::int64_t begin, std::int64_t end) {
    part(begin * together, end * together);
  });
}

// Convert a float32 from and to its upper half.
inline float widened(std::uint16_t half) {
  const std::uint32_t bits = std::uint32_t{half} << 16U;
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline std::uint16_t upper_half(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<std::uint16_t>(bits >> 16U);
}

}  // namespace skipdec::tests
