// Layer and RMS normalisation on the instruction set that the including file names.
#include "norms/normalization.h"
// clang-format off: order matters
#include "simd/begin.inc.h"
// clang-format on

#include "norms/inverse_root.inc.h"

namespace skipdec {
namespace {

// Returns the sum of term(0), term(16), … of a row; the last term is zero beyond the row. Chunk c
// is added to sum c mod 4, so that four sums run in parallel.
template <class Term>
inline float sum_of_chunks(std::int64_t size, const Term& term) {
  constexpr std::int64_t kStep = 4 * Vector::kLanes;
  Vector a = Vector::broadcast(0.0F), b = a, c = a, d = a;
  std::int64_t k = 0;
  for (; k + kStep <= size; k += kStep) {
    a = a + term(k);
    b = b + term(k + Vector::kLanes);
    c = c + term(k + 2 * Vector::kLanes);
    d = d + term(k + 3 * Vector::kLanes);
  }
  if (k < size) a = a + term(k);
  if (k + Vector::kLanes < size) b = b + term(k + Vector::kLanes);
  if (k + 2 * Vector::kLanes < size) c = c + term(k + 2 * Vector::kLanes);
  if (k + 3 * Vector::kLanes < size) d = d + term(k + 3 * Vector::kLanes);
  return sum((a + b) + (c + d));
}

// A row of ``size`` floats, read and written 16 lanes at a time.
struct RowChunks {
  std::int64_t size;

  int lanes(std::int64_t k) const { return lanes_of(size - k); }
  // Returns lanes k … k + 15, with zeros beyond the row.
  Vector load(const float* from, std::int64_t k) const { return load_up_to(from + k, lanes(k)); }
  void store(const Vector& v, float* to, std::int64_t k) const { store_up_to(v, to + k, lanes(k)); }
};

void layer_normalize_row(const Normalization& norm, const float* values, float* result) {
  const RowChunks row{norm.size};
  const auto length = static_cast<float>(norm.size);
  const float total = sum_of_chunks(norm.size, [&](std::int64_t k) { return row.load(values, k); });
  const Vector mean = Vector::broadcast(total / length);
  const float squares = sum_of_chunks(norm.size, [&](std::int64_t k) {
    Vector deviation = row.load(values, k) - mean;
    if (row.lanes(k) < Vector::kLanes) {  // exclude the zeros beyond the row
      float inside[Vector::kLanes];
      deviation.store(inside);
      deviation = load_first(inside, row.lanes(k));
    }
    return deviation * deviation;
  });
  const Vector factor = Vector::broadcast(inverse_root(squares, length, norm.epsilon));
  for (std::int64_t k = 0; k < norm.size; k += Vector::kLanes) {
    const Vector normal = (row.load(values, k) - mean) * factor;
    const Vector scale = row.load(norm.scale, k);
    row.store(
        norm.bias == nullptr ? normal * scale : multiply_add(normal, scale, row.load(norm.bias, k)),
        result, k);
  }
}

void rms_normalize_row(const Normalization& norm, const float* values, float* result) {
  const RowChunks row{norm.size};
  const float squares = sum_of_chunks(norm.size, [&](std::int64_t k) {
    const Vector x = row.load(values, k);
    return x * x;
  });
  const auto length = static_cast<float>(norm.size);
  const Vector factor = Vector::broadcast(inverse_root(squares, length, norm.epsilon));
  for (std::int64_t k = 0; k < norm.size; k += Vector::kLanes) {
    row.store(row.load(values, k) * factor * row.load(norm.scale, k), result, k);
  }
}

using NormalizeRow = void (*)(const Normalization&, const float* values, float* result);

template <NormalizeRow normalize_row>
void normalize(const Normalization& norm, const float* values, float* result, std::int64_t begin,
               std::int64_t end) noexcept {
  for (std::int64_t row = begin; row < end; ++row) {
    normalize_row(norm, values + row * norm.size, result + row * norm.size);
  }
}

constexpr NormKernels kKernels{normalize<layer_normalize_row>, normalize<rms_normalize_row>};

}  // namespace

const NormKernels& SKIPDEC_NAMED(norm_kernels)() { return kKernels; }
}  // namespace skipdec

#include "simd/end.inc.h"
