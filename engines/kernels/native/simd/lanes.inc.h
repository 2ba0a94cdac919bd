// Loads, stores and reductions of floats whose number is not a multiple of 16; include after a
// Vector.
#pragma once

namespace skipdec {
namespace {

// Returns how many of ``left`` elements, 1 or more, a Vector has.
inline int lanes_of(std::int64_t left) {
  return static_cast<int>(std::min<std::int64_t>(left, Vector::kLanes));
}

// Loads the first ``count`` lanes (1 to 16) with zeros beyond, without touching memory beyond.
template <class Element>
inline Vector load_up_to(const Element* from, int count) {
  return count == Vector::kLanes ? Vector::load(from) : load_first(from, count);
}

// Stores the first ``count`` lanes (1 to 16).
template <class Element>
inline void store_up_to(const Vector& v, Element* to, int count) {
  if (count == Vector::kLanes) {
    v.store(to);
  } else {
    store_first(v, to, count);
  }
}

// Returns the largest magnitude of ``count`` floats, or NaN if they are not all finite.
inline float peak_of(const float* values, std::int64_t count) {
  const Vector zero = Vector::broadcast(0.0F);
  Vector peak = zero, poison = zero;
  for (std::int64_t k = 0; k < count; k += Vector::kLanes) {
    const Vector v = load_up_to(values + k, lanes_of(count - k));
    peak = max(abs(v), peak);    // the second if the first is NaN
    poison = poison + v * zero;  // stays NaN once a v is not finite
  }
  return maximum(peak) + sum(poison);
}

}  // namespace
}  // namespace skipdec
