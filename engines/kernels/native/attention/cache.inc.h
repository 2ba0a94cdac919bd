// Reads and writes rows of the key and value caches, by element type.
#pragma once

namespace skipdec::attention {
namespace {

// True if a row's last four bytes are a scale.
template <class Element>
constexpr bool kHasScale = std::is_same_v<Element, std::int8_t>;

template <class Element>
constexpr std::int64_t row_length(std::int64_t head_size) {
  return head_size + (kHasScale<Element> ? std::int64_t{sizeof(float)} : 0);
}

// The rows of one head, of which the first ``length`` may be read.
template <class Element>
struct CachedRows {
  Element* first;
  std::int64_t stride;
  std::int64_t head_size;

  CachedRows(void* cache, const Call& call, std::int64_t sequence, std::int64_t kv_head)
      : stride(row_length<Element>(call.head_size)), head_size(call.head_size) {
    first = static_cast<Element*>(cache) +
            (sequence * call.kv_heads + kv_head) * call.capacity * stride;
  }

  Element* at(std::int64_t position) const { return first + position * stride; }

  // Returns the factor by which the row's elements are multiplied.
  float scale(std::int64_t position) const {
    float value = 1.0F;
    if constexpr (kHasScale<Element>) std::memcpy(&value, at(position) + head_size, sizeof value);
    return value;
  }

  // Returns the scales of 16 rows from ``position``; those from ``end`` on repeat the last one.
  Vector scales(std::int64_t position, std::int64_t end) const {
    float values[Vector::kLanes];
    for (int i = 0; i < Vector::kLanes; ++i) values[i] = scale(std::min(position + i, end - 1));
    return Vector::load(values);
  }
};

template <class Element>
void write_row(const float* from, Element* row, std::int64_t head_size) {
  const Chunks chunks(head_size);
  if constexpr (kHasScale<Element>) {
    const float scale = peak_of(from, head_size) / 127.0F;  // NaN for a row that is not finite
    std::memcpy(row + head_size, &scale, sizeof scale);
    const Vector divisor = Vector::broadcast(scale > 0.0F ? scale : 1.0F);
    for (int c = 0; c < chunks.count; ++c) chunks.store(chunks.load(from, c) / divisor, row, c);
  } else {
    for (int c = 0; c < chunks.count; ++c) chunks.store(chunks.load(from, c), row, c);
  }
}

template <class Element>
void append(const Call& call, std::int64_t sequence, std::int64_t kv_head,
            float* scratch) noexcept {
  const CachedRows<Element> keys(call.key_cache, call, sequence, kv_head);
  const CachedRows<Element> values(call.value_cache, call, sequence, kv_head);
  const std::int64_t start = call.write_indices[sequence];
  const std::int64_t tokens = std::min(call.tokens, call.capacity - start);
  const bool is_changed = changes_heads(call, call.key_norm);
  for (std::int64_t s = 0; s < tokens; ++s) {
    const std::int64_t token = sequence * call.tokens + s;
    const std::int64_t column = kv_head * call.head_size;
    const float* key = call.key + token * call.key_stride + column;
    if (is_changed) change_head(call, call.key_norm, token, key, scratch);
    write_row(is_changed ? scratch : key, keys.at(start + s), call.head_size);
    write_row(call.value + token * call.value_stride + column, values.at(start + s),
              call.head_size);
  }
}

// A query of a span: its memory, and the number of cache rows to which it attends.
struct Query {
  const float* from;
  float* to;
  std::int64_t length;
};

inline Query query_of(const Call& call, const Span& span, std::int64_t index) {
  const std::int64_t s = index / call.group;
  const std::int64_t token = span.sequence * call.tokens + s;
  const std::int64_t head = span.kv_head * call.group + index % call.group;
  const std::int64_t width = call.kv_heads * call.group * call.head_size;
  const std::int64_t position = call.write_indices[span.sequence] + s;
  return {call.query + token * call.query_stride + head * call.head_size,
          call.y + token * width + head * call.head_size, std::min(position + 1, call.capacity)};
}

// Returns the head of a query, normalised and rotated: its own memory if neither applies, otherwise
// ``to``, to which it is written.
inline const float* query_head(const Call& call, const Span& span, std::int64_t index,
                               const float* from, float* to) {
  if (!changes_heads(call, call.query_norm)) return from;
  const std::int64_t token = span.sequence * call.tokens + index / call.group;
  change_head(call, call.query_norm, token, from, to);
  return to;
}

inline std::int64_t rounded_up(std::int64_t count) {
  return (count + Vector::kLanes - 1) / Vector::kLanes * Vector::kLanes;
}

// Replaces ``length`` scores by e^(score - largest), writes zeros up to a multiple of 16 (the
// caller's memory must extend that far), and returns the reciprocal of the sum. Lane i of the sum
// adds the elements 16k + i.
inline float exponentiate(float* scores, std::int64_t length) {
  const Vector none = Vector::broadcast(-std::numeric_limits<float>::infinity());
  const std::int64_t end = rounded_up(length);
  for (std::int64_t t = length; t < end; ++t) scores[t] = -std::numeric_limits<float>::infinity();
  Vector largest = none;
  for (std::int64_t t = 0; t < end; t += Vector::kLanes) {
    largest = max(largest, Vector::load(scores + t));
  }
  largest = Vector::broadcast(maximum(largest));
  Vector total = Vector::broadcast(0.0F);
  for (std::int64_t t = 0; t < end; t += Vector::kLanes) {
    const Vector weight = exp(Vector::load(scores + t) - largest);
    weight.store(scores + t);
    total = total + weight;
  }
  return 1.0F / sum(total);
}

}  // namespace
}  // namespace skipdec::attention
