// Loads and stores of a Vector's first lanes for instruction sets without masks.
#pragma once

namespace skipdec {
namespace {

// Loads the first ``count`` lanes (0 to 16) with zeros beyond, without touching memory beyond.
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
