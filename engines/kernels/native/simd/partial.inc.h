// Loads and stores of a Vector's first lanes where the instruction set has no masks for them.
#pragma once

namespace skipdec {
namespace {

// The first ``count`` lanes (0 to 16), zeros beyond; memory beyond is not touched.
template <class Element>
inline Vector load_first(const Element* from, int count) {
  Element elements[Vector::kLanes]{};
  std::memcpy(elements, from, static_cast<std::size_t>(count) * sizeof(Element));
  return Vector::load(elements);
}

template <class Element>
inline void store_first(const Vector& v, Element* to, int count) {
  Element elements[Vector::kLanes];
  v.store(elements);
  std::memcpy(to, elements, static_cast<std::size_t>(count) * sizeof(Element));
}

}  // namespace
}  // namespace skipdec
