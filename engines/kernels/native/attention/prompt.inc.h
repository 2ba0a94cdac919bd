// Many queries against one head's cache: keys and values are widened once into tiles of float32,
// and blocks of queries are held in registers over a tile. Sums run in the order of decode.inc.h.
#pragma once

namespace skipdec::attention {
namespace {

// A span's queries and scratch memory.
struct Block {
  const Call& call;
  const Span& span;
  std::int64_t queries;
  std::int64_t longest;  // rows that the last query attends to
  std::int64_t width;    // of a query, in floats: D rounded up to 16
  std::int64_t stride;   // of a query's scores
  float* query;          // [queries][16][width / 16], scaled
  float* total;          // [queries][width]: sums of weighted values
  float* scores;         // [queries][stride]
  float* tile;           // keys [16][width / 16][16], or values [kValueTile][width]
};

inline std::int64_t length_of(const Block& block, std::int64_t index) {
  return query_of(block.call, block.span, block.span.first + index).length;
}

// Element d = 16c + p of a query at [p][c], scaled.
template <class Layout>
void arrange_query(const Block& block, std::int64_t index, const Layout& layout) {
  const Query query = query_of(block.call, block.span, block.span.first + index);
  float* to = block.query + index * block.width;
  const Vector scale = Vector::broadcast(block.call.scale);
  for (int c = 0; c < layout.count; ++c) {
    float chunk[16];
    (layout.load(query.from, c) * scale).store(chunk);
    for (int p = 0; p < 16; ++p) to[p * layout.count + c] = chunk[p];
  }
}

// Element d = 16c + p of sixteen keys from ``position`` at [p][c]; the last of ``end`` beyond it.
template <class Element, class Layout>
void load_keys(const CachedRows<Element>& keys, std::int64_t position, std::int64_t end,
               const Layout& layout, float* tile) {
  for (int c = 0; c < layout.count; ++c) {
    Vector rows[16];
    for (int i = 0; i < 16; ++i) {
      rows[i] = layout.load(keys.at(std::min(position + i, end - 1)), c);
    }
    transpose(rows);
    for (int p = 0; p < 16; ++p) rows[p].store(tile + (p * layout.count + c) * Vector::kLanes);
  }
}

// The scores of kQueries queries from ``index`` with the tile's keys.
template <int kQueries, class Layout>
inline void score_tile(const Block& block, std::int64_t index, const Vector& key_scale,
                       const Layout& layout, std::int64_t position) {
  const float* query = block.query + index * block.width;
  const float* tile = block.tile;
  Vector total[kQueries];
  for (Vector& each : total) each = Vector::broadcast(-0.0F);  // -0 + x is x, zeros' signs too
  for (int p = 0; p < 16; ++p) {
    Vector partial[kQueries];
    for (int i = 0; i < kQueries; ++i) {
      partial[i] = Vector::broadcast(query[i * block.width]) * Vector::load(tile);
    }
    for (int c = 1; c < layout.count; ++c) {
      const Vector keys = Vector::load(tile + c * Vector::kLanes);
      for (int i = 0; i < kQueries; ++i) {
        partial[i] = multiply_add(Vector::broadcast(query[i * block.width + c]), keys, partial[i]);
      }
    }
    for (int i = 0; i < kQueries; ++i) total[i] = total[i] + partial[i];
    query += layout.count;
    tile += layout.count * Vector::kLanes;
  }
  for (int i = 0; i < kQueries; ++i) {
    (total[i] * key_scale).store(block.scores + (index + i) * block.stride + position);
  }
}

// Queries in [index, block.queries), kQueries at a time, then half as many.
template <int kQueries, class Layout>
void score_queries(const Block& block, std::int64_t index, const Vector& key_scale,
                   const Layout& layout, std::int64_t position) {
  for (; index + kQueries <= block.queries; index += kQueries) {
    if (length_of(block, index + kQueries - 1) <= position) continue;
    score_tile<kQueries>(block, index, key_scale, layout, position);
  }
  if constexpr (kQueries > 1) {
    score_queries<kQueries / 2>(block, index, key_scale, layout, position);
  }
}

// Add the rows [from, to) of a tile, which starts at ``position``, to the sums of kQueries queries,
// for kColumns vectors from ``column`` on.
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

// What all kQueries attend to is added together, the rest to each on its own: a row beyond a
// query's own position has no part in it, not even as zero times a value.
template <int kQueries>
void weigh_queries(const Block& block, std::int64_t index, std::int64_t position,
                   std::int64_t end) {
  for (; index + kQueries <= block.queries; index += kQueries) {
    const std::int64_t shared = std::clamp(length_of(block, index), position, end);
    weigh_columns<kQueries>(block, index, position, position, shared);
    for (int i = 0; i < kQueries; ++i) {
      weigh_columns<1>(block, index + i, position, shared,
                       std::min(length_of(block, index + i), end));
    }
  }
  if constexpr (kQueries > 1) weigh_queries<kQueries / 2>(block, index, position, end);
}

template <class Element, class Layout>
void score_block(const Block& block, const Layout& layout) {
  const CachedRows<Element> keys(block.call.key_cache, block.call, block.span.sequence,
                                 block.span.kv_head);
  for (std::int64_t t = 0; t < block.longest; t += Vector::kLanes) {
    load_keys(keys, t, block.longest, layout, block.tile);
    Vector key_scale = Vector::broadcast(1.0F);
    if constexpr (kHasScale<Element>) key_scale = keys.scales(t, block.longest);
    score_queries<kScoreQueries>(block, 0, key_scale, layout, t);
  }
}

// As many rows of values as stay in the first-level cache, in sixteens.
inline std::int64_t value_tile_rows(std::int64_t width) {
  return std::max<std::int64_t>(kValueTileFloats / width / Vector::kLanes, 1) * Vector::kLanes;
}

template <class Element, class Layout>
void weigh_block(const Block& block, const Layout& layout) {
  const CachedRows<Element> values(block.call.value_cache, block.call, block.span.sequence,
                                   block.span.kv_head);
  const std::int64_t rows = value_tile_rows(block.width);
  for (std::int64_t t = 0; t < block.longest; t += rows) {
    const std::int64_t end = std::min(t + rows, block.longest);
    for (std::int64_t row = t; row < end; ++row) {
      float* to = block.tile + (row - t) * block.width;
      for (int c = 0; c < layout.count; ++c) {
        layout.load(values.at(row), c).store(to + c * Vector::kLanes);
      }
    }
    for (std::int64_t i = 0; i < block.queries; ++i) {
      scale_weights(values, t, std::min(end, length_of(block, i)), block.scores + i * block.stride);
    }
    weigh_queries<kValueQueries>(block, 0, t, end);
  }
}

template <class Element, class Layout>
void attend_block(const Call& call, const Span& span, const Layout& layout, float* scratch) {
  Block block{call,
              span,
              span.last - span.first,
              0,
              layout.count * Vector::kLanes,
              0,
              scratch,
              nullptr,
              nullptr,
              nullptr};
  block.longest = length_of(block, block.queries - 1);
  block.stride = score_stride(block.longest);
  block.total = block.query + block.queries * block.width;
  block.scores = block.total + block.queries * block.width;
  block.tile = block.scores + block.queries * block.stride;
  for (std::int64_t i = 0; i < block.queries; ++i) arrange_query(block, i, layout);
  score_block<Element>(block, layout);
  std::fill(block.total, block.total + block.queries * block.width, 0.0F);
  float inverse[kLongestSpan];
  for (std::int64_t i = 0; i < block.queries; ++i) {
    inverse[i] = exponentiate(block.scores + i * block.stride, length_of(block, i));
  }
  weigh_block<Element>(block, layout);
  for (std::int64_t i = 0; i < block.queries; ++i) {
    const Query query = query_of(call, span, span.first + i);
    for (int c = 0; c < layout.count; ++c) {
      const Vector total = Vector::load(block.total + i * block.width + c * Vector::kLanes);
      layout.store(total * Vector::broadcast(inverse[i]), query.to, c);
    }
  }
}

}  // namespace
}  // namespace skipdec::attention
