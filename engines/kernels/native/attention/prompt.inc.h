// Attention of many queries to one head's cache. Keys and values are widened once into tiles of
// float32, and registers hold a block of queries over a tile. Sums run in the order of
// decode.inc.h.
#pragma once

namespace skipdec::attention {
namespace {

// A span's queries and scratch memory.
struct Block {
  const Call& call;
  const Span& span;
  Query queries[kLongestSpan];
  std::int64_t count;    // number of queries
  std::int64_t longest;  // rows to which the last query attends
  std::int64_t width;    // floats per query: D rounded up to 16
  std::int64_t stride;   // floats between the scores of two queries
  float* query;          // [count][width], scaled
  float* total;          // [count][width]: sums of weighted values
  float* scores;         // [count][stride]
  float* tile;           // keys [16][width / 16][16], or values [rows][width]

  Block(const Call& of_call, const Span& of_span, float* scratch)
      : call(of_call), span(of_span), count(span.last - span.first) {
    for (std::int64_t i = 0; i < count; ++i) queries[i] = query_of(call, span, span.first + i);
    longest = queries[count - 1].length;
    width = rounded_up(call.head_size);
    stride = score_stride(longest);
    query = scratch;
    total = query + count * width;
    scores = total + count * width;
    tile = scores + count * stride;
  }
};

// Stores element d = 16c + p of sixteen keys from ``position`` at [p][c]; rows from ``end`` on
// repeat the last one.
template <class Element, class Layout>
void load_keys(const CachedRows<Element>& keys, std::int64_t position, std::int64_t end,
               const Prefetch<Element>& prefetch, const Layout& layout, float* tile) {
  for (int c = 0; c < layout.count; ++c) {
    Vector rows[16];
    for (int i = 0; i < 16; ++i) {
      const Element* row = keys.at(std::min(position + i, end - 1));
      if (c == 0) prefetch(position + i);
      rows[i] = layout.load(row, c);
    }
    transpose(rows);
    for (int p = 0; p < 16; ++p) rows[p].store(tile + (p * layout.count + c) * Vector::kLanes);
  }
}

// Computes the scores of kQueries queries from ``index`` with the tile's keys.
template <int kQueries, class Layout>
inline void score_tile(const Block& block, std::int64_t index, const Vector& key_scale,
                       const Layout& layout, std::int64_t position) {
  const float* query = block.query + index * block.width;
  const float* tile = block.tile;
  Vector total[kQueries];
  for (Vector& each : total) each = Vector::broadcast(-0.0F);  // -0 + x is x, even for x = -0
  for (int p = 0; p < 16; ++p) {
    Vector partial[kQueries];
    for (int i = 0; i < kQueries; ++i) {
      partial[i] = Vector::broadcast(query[i * block.width]) * Vector::load(tile);
    }
    for (int c = 1; c < layout.count; ++c) {
      const Vector keys = Vector::load(tile + c * Vector::kLanes);
      for (int i = 0; i < kQueries; ++i) {
        partial[i] = multiply_add(Vector::broadcast(query[i * block.width + c * Vector::kLanes]),
                                  keys, partial[i]);
      }
    }
    for (int i = 0; i < kQueries; ++i) total[i] = total[i] + partial[i];
    ++query;
    tile += layout.count * Vector::kLanes;
  }
  for (int i = 0; i < kQueries; ++i) {
    (total[i] * key_scale).store(block.scores + (index + i) * block.stride + position);
  }
}

// Scores the queries in [index, block.count), kQueries at a time, then half as many.
template <int kQueries, class Layout>
void score_queries(const Block& block, std::int64_t index, const Vector& key_scale,
                   const Layout& layout, std::int64_t position) {
  for (; index + kQueries <= block.count; index += kQueries) {
    if (block.queries[index + kQueries - 1].length <= position) continue;
    score_tile<kQueries>(block, index, key_scale, layout, position);
  }
  if constexpr (kQueries > 1) {
    score_queries<kQueries / 2>(block, index, key_scale, layout, position);
  }
}

// Adds the rows [from, to) of a tile, which starts at ``position``, to the sums of kQueries
// queries, for kColumns vectors from ``column`` on.
template <int kQueries, int kColumns>
inline void weigh_tile(const Block& block, std::int64_t index, std::int64_t position,
                       std::int64_t from, std::int64_t to, std::int64_t column) {
  float* totals = block.total + index * block.width + column;
  const float* weights = block.scores + index * block.stride;
  Vector total[kQueries][kColumns];
  for (int i = 0; i < kQueries; ++i) {
    for (int j = 0; j < kColumns; ++j) {
      total[i][j] = Vector::load(totals + i * block.width + j * Vector::kLanes);
    }
  }
  for (std::int64_t t = from; t < to; ++t) {
    const float* row = block.tile + (t - position) * block.width + column;
    Vector values[kColumns];
    for (int j = 0; j < kColumns; ++j) values[j] = Vector::load(row + j * Vector::kLanes);
    for (int i = 0; i < kQueries; ++i) {
      const Vector weight = Vector::broadcast(weights[i * block.stride + t]);
      for (int j = 0; j < kColumns; ++j) {
        total[i][j] = multiply_add(weight, values[j], total[i][j]);
      }
    }
  }
  for (int i = 0; i < kQueries; ++i) {
    for (int j = 0; j < kColumns; ++j) {
      total[i][j].store(totals + i * block.width + j * Vector::kLanes);
    }
  }
}

template <int kQueries>
void weigh_columns(const Block& block, std::int64_t index, std::int64_t position, std::int64_t from,
                   std::int64_t to) {
  if (from >= to) return;
  std::int64_t column = 0;
  for (; column + kValueColumns * Vector::kLanes <= block.width;
       column += kValueColumns * Vector::kLanes) {
    weigh_tile<kQueries, kValueColumns>(block, index, position, from, to, column);
  }
  for (; column < block.width; column += Vector::kLanes) {
    weigh_tile<kQueries, 1>(block, index, position, from, to, column);
  }
}

// Processes rows to which all kQueries attend for all of them together, and other rows for each
// query separately: a row beyond a query's own position must not contribute, not even as zero times
// a value.
template <int kQueries>
void weigh_queries(const Block& block, std::int64_t index, std::int64_t position,
                   std::int64_t end) {
  for (; index + kQueries <= block.count; index += kQueries) {
    const std::int64_t shared = std::clamp(block.queries[index].length, position, end);
    weigh_columns<kQueries>(block, index, position, position, shared);
    for (int i = 0; i < kQueries; ++i) {
      weigh_columns<1>(block, index + i, position, shared,
                       std::min(block.queries[index + i].length, end));
    }
  }
  if constexpr (kQueries > 1) weigh_queries<kQueries / 2>(block, index, position, end);
}

template <class Element, class Layout>
void score_block(const Block& block, const Layout& layout) {
  const CachedRows<Element> keys(block.call.key_cache, block.call, block.span.sequence,
                                 block.span.kv_head);
  const CachedRows<Element> values(block.call.value_cache, block.call, block.span.sequence,
                                   block.span.kv_head);
  const Prefetch<Element> prefetch(keys, block.longest, values.first);
  for (std::int64_t t = 0; t < block.longest; t += Vector::kLanes) {
    load_keys(keys, t, block.longest, prefetch, layout, block.tile);
    Vector key_scale = Vector::broadcast(1.0F);
    if constexpr (kHasScale<Element>) key_scale = keys.scales(t, block.longest);
    score_queries<kScoreQueries>(block, 0, key_scale, layout, t);
  }
}

// Number of rows of values that stay in the L1 cache, a multiple of sixteen.
inline std::int64_t value_tile_rows(std::int64_t width) {
  return std::max<std::int64_t>(kValueTileFloats / width / Vector::kLanes, 1) * Vector::kLanes;
}

// Multiplies the weights of the rows [first, last) by these rows' scales.
template <class Element>
void scale_weights(const Block& block, const CachedRows<Element>& values, std::int64_t first,
                   std::int64_t last) {
  for (std::int64_t t = first; t < last; t += Vector::kLanes) {
    const Vector scales = values.scales(t, last);
    for (std::int64_t i = 0; i < block.count; ++i) {
      float* weights = block.scores + i * block.stride + t;
      (Vector::load(weights) * scales).store(weights);
    }
  }
}

template <class Element, class Layout>
void weigh_block(const Block& block, const Layout& layout) {
  const CachedRows<Element> values(block.call.value_cache, block.call, block.span.sequence,
                                   block.span.kv_head);
  const Prefetch<Element> prefetch(values, block.longest, values.at(block.call.capacity));
  const std::int64_t rows = value_tile_rows(block.width);
  for (std::int64_t t = 0; t < block.longest; t += rows) {
    const std::int64_t end = std::min(t + rows, block.longest);
    for (std::int64_t row = t; row < end; ++row) {
      float* to = block.tile + (row - t) * block.width;
      prefetch(row);
      for (int c = 0; c < layout.count; ++c) {
        layout.load(values.at(row), c).store(to + c * Vector::kLanes);
      }
    }
    if constexpr (kHasScale<Element>) scale_weights(block, values, t, end);
    weigh_queries<kValueQueries>(block, 0, t, end);
  }
}

template <class Element, class Layout>
void attend_block(const Call& call, const Span& span, const Layout& layout, float* scratch) {
  const Block block(call, span, scratch);
  const Vector scale = Vector::broadcast(call.scale);
  for (std::int64_t i = 0; i < block.count; ++i) {
    float* query = block.query + i * block.width;
    const float* head = query_head(call, span, span.first + i, block.queries[i].from, query);
    for (int c = 0; c < layout.count; ++c) {
      (layout.load(head, c) * scale).store(query + c * Vector::kLanes);
      Vector::broadcast(0.0F).store(block.total + i * block.width + c * Vector::kLanes);
    }
  }
  score_block<Element>(block, layout);
  float inverse[kLongestSpan];
  for (std::int64_t i = 0; i < block.count; ++i) {
    inverse[i] = exponentiate(block.scores + i * block.stride, block.queries[i].length);
  }
  weigh_block<Element>(block, layout);
  for (std::int64_t i = 0; i < block.count; ++i) {
    for (int c = 0; c < layout.count; ++c) {
      const Vector total = Vector::load(block.total + i * block.width + c * Vector::kLanes);
      layout.store(total * Vector::broadcast(inverse[i]), block.queries[i].to, c);
    }
  }
}

}  // namespace
}  // namespace skipdec::attention
