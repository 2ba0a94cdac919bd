// A row of D elements as chunks of 16 lanes; include after a Vector.
#pragma once

namespace skipdec {
namespace {

// Chunks of 16 lanes of a row of D elements; the last one may have eight lanes.
struct Chunks {
  int count;
  int last;  // lanes of the last chunk

  explicit Chunks(std::int64_t head_size)
      : count(static_cast<int>((head_size + Vector::kLanes - 1) / Vector::kLanes)),
        last(static_cast<int>(head_size) - (count - 1) * Vector::kLanes) {}

  template <class Element>
  Vector load(const Element* row, int chunk) const {
    return load_up_to(row + chunk * Vector::kLanes, chunk + 1 < count ? Vector::kLanes : last);
  }
  template <class Element>
  void store(const Vector& v, Element* row, int chunk) const {
    store_up_to(v, row + chunk * Vector::kLanes, chunk + 1 < count ? Vector::kLanes : last);
  }
};

// Like Chunks, for D = 16·kCount known at compile time, so that no chunk is partial.
template <int kCount>
struct WholeChunks {
  static constexpr int count = kCount;

  explicit WholeChunks(std::int64_t) {}

  template <class Element>
  Vector load(const Element* row, int chunk) const {
    return Vector::load(row + chunk * Vector::kLanes);
  }
  template <class Element>
  void store(const Vector& v, Element* row, int chunk) const {
    v.store(row + chunk * Vector::kLanes);
  }
};

}  // namespace
}  // namespace skipdec
