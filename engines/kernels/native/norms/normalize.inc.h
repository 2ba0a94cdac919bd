// Layer normalisation with the Vector of the including file.
#pragma once

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

void normalize_row(const Normalization& norm, const float* values, float* result) {
  const auto size = norm.size;
  const auto lanes = [size](std::int64_t k) {
    return static_cast<int>(std::min<std::int64_t>(size - k, Vector::kLanes));
  };
  const auto load = [&](const float* from, std::int64_t k) {
    return lanes(k) == Vector::kLanes ? Vector::load(from + k) : load_first(from + k, lanes(k));
  };
  const auto length = static_cast<float>(size);
  const float total = sum_of_chunks(size, [&](std::int64_t k) { return load(values, k); });
  const Vector mean = Vector::broadcast(total / length);
  const float squares = sum_of_chunks(size, [&](std::int64_t k) {
    Vector deviation = load(values, k) - mean;
    if (lanes(k) < Vector::kLanes) {  // exclude the zeros beyond the row
      float inside[Vector::kLanes];
      deviation.store(inside);
      deviation = load_first(inside, lanes(k));
    }
    return deviation * deviation;
  });
  const Vector factor = Vector::broadcast(1.0F / std::sqrt(squares / length + norm.epsilon));
  for (std::int64_t k = 0; k < size; k += Vector::kLanes) {
    const Vector normal = (load(values, k) - mean) * factor;
    const Vector scale = load(norm.scale, k);
    const Vector y =
        norm.bias == nullptr ? normal * scale : multiply_add(normal, scale, load(norm.bias, k));
    if (lanes(k) == Vector::kLanes) {
      y.store(result + k);
    } else {
      store_first(y, result + k, lanes(k));
    }
  }
}

void normalize(const Normalization& norm, const float* values, float* result, std::int64_t begin,
               std::int64_t end) noexcept {
  for (std::int64_t row = begin; row < end; ++row) {
    normalize_row(norm, values + row * norm.size, result + row * norm.size);
  }
}

}  // namespace
}  // namespace skipdec
