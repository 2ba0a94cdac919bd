// Attention of a single query: reads each row of keys and values once, in place, at memory
// bandwidth.
#pragma once

namespace skipdec::attention {
namespace {

// Prefetches the row that will be read about 4 KB later. After the last row of ``rows``, this is a
// row at ``after``, because the memory that follows is usually unused capacity of the cache.
template <class Element>
class Prefetch {
 public:
  Prefetch(const CachedRows<Element>& rows, std::int64_t length, const Element* after)
      : rows_(rows),
        length_(length),
        after_(after),
        bytes_(rows.stride * static_cast<std::int64_t>(sizeof(Element))),
        ahead_(kBytes / bytes_) {}

  // Always inlined, because g++ 12 drops calls of a function that only prefetches.
  __attribute__((always_inline)) void operator()(std::int64_t t) const {
    const std::int64_t at = t + ahead_;
    const Element* row = at < length_ ? rows_.at(at) : after_ + (at - length_) * rows_.stride;
    const char* line = reinterpret_cast<const char*>(row);
    for (std::int64_t byte = 0; byte < bytes_; byte += 64) __builtin_prefetch(line + byte);
  }

 private:
  static constexpr std::int64_t kBytes = 4096;

  const CachedRows<Element>& rows_;
  std::int64_t length_;
  const Element* after_;
  std::int64_t bytes_;
  std::int64_t ahead_;
};

// Lane i of the result is the sum of rows[i]'s lanes, added from the first to the last.
inline Vector sums_of(Vector (&rows)[16]) {
  transpose(rows);
  Vector total = rows[0];
  for (int lane = 1; lane < 16; ++lane) total = total + rows[lane];
  return total;
}

// Computes scores[t] for t in [0, length): lane p of a partial sum adds the products of the
// elements 16c + p in order of c.
template <class Element, class Layout>
void score_one(const float* query, const CachedRows<Element>& keys, std::int64_t length,
               const Prefetch<Element>& prefetch, const Layout& layout, float* scores) {
  for (std::int64_t t = 0; t < length; t += Vector::kLanes) {
    Vector partial[16];
    for (int i = 0; i < 16; ++i) {
      const Element* row = keys.at(std::min(t + i, length - 1));
      prefetch(t + i);
      partial[i] = Vector::load(query) * layout.load(row, 0);
      for (int c = 1; c < layout.count; ++c) {
        partial[i] =
            multiply_add(Vector::load(query + c * Vector::kLanes), layout.load(row, c), partial[i]);
      }
    }
    Vector score = sums_of(partial);
    if constexpr (kHasScale<Element>) score = score * keys.scales(t, length);
    score.store(scores + t);
  }
}

// Computes y = Σ weights[t]·values[t] · inverse for kCount chunks from ``chunk``, with one chain of
// fused multiply-adds over t for each element.
template <int kCount, class Element, class Layout>
void weigh_one(const float* weights, const CachedRows<Element>& values, std::int64_t length,
               const Prefetch<Element>& prefetch, const Layout& layout, int chunk, float inverse,
               float* y) {
  Vector total[kCount];
  for (Vector& each : total) each = Vector::broadcast(0.0F);
  for (std::int64_t t = 0; t < length; ++t) {
    const Element* row = values.at(t);
    prefetch(t);
    const Vector weight = Vector::broadcast(weights[t] * values.scale(t));
    for (int c = 0; c < kCount; ++c) {
      total[c] = multiply_add(weight, layout.load(row, chunk + c), total[c]);
    }
  }
  for (int c = 0; c < kCount; ++c) {
    layout.store(total[c] * Vector::broadcast(inverse), y, chunk + c);
  }
}

// Writes the scaled query. It is a separate function, so that the loops over the cache stay small
// enough to be inlined.
template <class Layout>
__attribute__((noinline)) void write_query(const Call& call, const Span& span, std::int64_t index,
                                           const float* from, const Layout& layout, float* to) {
  const float* head = query_head(call, span, index, from, to);
  const Vector scale = Vector::broadcast(call.scale);
  for (int c = 0; c < layout.count; ++c) {
    (layout.load(head, c) * scale).store(to + c * Vector::kLanes);
  }
}

// ``scratch`` holds the scaled query, then the scores.
template <class Element, class Layout>
void attend_one(const Call& call, const Span& span, std::int64_t index, const Layout& layout,
                float* scratch) {
  const Query query = query_of(call, span, index);
  const CachedRows<Element> keys(call.key_cache, call, span.sequence, span.kv_head);
  const CachedRows<Element> values(call.value_cache, call, span.sequence, span.kv_head);
  float* scores = scratch + layout.count * Vector::kLanes;
  write_query(call, span, index, query.from, layout, scratch);
  const Prefetch<Element> of_keys(keys, query.length, values.first);
  const Prefetch<Element> of_values(values, query.length, keys.at(call.capacity));  // the next head
  score_one(scratch, keys, query.length, of_keys, layout, scores);
  const float inverse = exponentiate(scores, query.length);
  if constexpr (std::is_same_v<Layout, Chunks>) {
    for (int c = 0; c < layout.count; ++c) {
      weigh_one<1>(scores, values, query.length, of_values, layout, c, inverse, query.to);
    }
  } else {
    weigh_one<Layout::count>(scores, values, query.length, of_values, layout, 0, inverse, query.to);
  }
}

}  // namespace
}  // namespace skipdec::attention
