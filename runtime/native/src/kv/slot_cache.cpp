#include "kv/slot_cache.h"

#include <algorithm>
#include <utility>

namespace skipdec::runtime {

SlotCache::SlotCache(BufferPool& pool, const KVLayout& layout, std::int64_t num_layers,
                     const Limits& limits)
    : pool_(pool), layout_(layout), limits_(limits), layers_(static_cast<std::size_t>(num_layers)) {
  for (Layer& layer : layers_) {
    layer.residents.reserve(static_cast<std::size_t>(limits.max_rows));
  }
  lengths_.reserve(static_cast<std::size_t>(limits.max_rows));
}

std::int64_t SlotCache::bytes_with(const std::vector<const Reservation*>& reservations,
                                   std::int64_t prompt_bytes) const {
  std::int64_t total = 0;
  std::int64_t growth = prompt_bytes;
  for (std::size_t index = 0; index < layers_.size(); ++index) {
    const Layer& layer = layers_[index];
    auto rows = static_cast<std::int64_t>(layer.reserved.size());
    std::int64_t positions = 0;
    for (const auto& [row, reserved] : layer.reserved) positions = std::max(positions, reserved);
    for (const Reservation* each : reservations) {
      rows += (*each)[index] > 0 ? 1 : 0;
      positions = std::max(positions, (*each)[index]);
    }
    Size size = size_for(rows, positions);
    if (layer.pair && rows > 0) {
      const Size held{layer.pair->rows(), layer.pair->capacity()};
      size = {std::max(size.rows, held.rows), std::max(size.positions, held.positions)};
      if (size.rows != held.rows || size.positions != held.positions) {
        growth = std::max(growth, pair_bytes(held));  // both exist while one is copied
      }
    }
    total += pair_bytes(size);
  }
  return total + growth;
}

std::int64_t SlotCache::bytes_alone(const Reservation& reservation, std::int64_t rows) const {
  std::int64_t total = 0;
  for (const std::int64_t positions : reservation) {
    if (positions > 0) total += pair_bytes(size_for(rows, positions));
  }
  return total;
}

void SlotCache::reserve(const std::vector<Row>& rows,
                        const std::vector<const Reservation*>& reservations) {
  for (std::size_t index = 0; index < layers_.size(); ++index) {
    Layer& layer = layers_[index];
    bool is_new = false;
    for (std::size_t row = 0; row < rows.size(); ++row) {
      const std::int64_t positions = (*reservations[row])[index];
      if (positions == 0) continue;
      layer.reserved[rows[row]] = positions;
      is_new = true;
    }
    if (is_new) grow(layer);
  }
}

CacheView SlotCache::enter(std::int64_t layer, const std::vector<Row>& rows) {
  ++version_;
  Layer& entered = at(layer);
  const auto start = static_cast<std::int64_t>(entered.residents.size());
  entered.residents.insert(entered.residents.end(), rows.begin(), rows.end());
  return entered.pair->view(start, static_cast<std::int64_t>(rows.size()));
}

void SlotCache::leave(Row row, std::int64_t layer) {
  ++version_;
  Layer& left = at(layer);
  left.reserved.erase(row);
  const auto found = std::find(left.residents.begin(), left.residents.end(), row);
  if (found != left.residents.end()) {
    const Row last = left.residents.back();
    left.residents.pop_back();
    if (last != row) {
      const CacheView all = left.pair->view(0, left.pair->rows());
      const std::int64_t gap = found - left.residents.begin();
      copy_positions(layout_, all, static_cast<std::int64_t>(left.residents.size()), all, gap,
                     held(left, last));
      *found = last;
    }
  }
  if (left.reserved.empty()) give_back(left);
}

void SlotCache::release(Row row) {
  for (std::int64_t layer = 0; layer < num_layers(); ++layer) leave(row, layer);
  lengths_.erase(row);
}

void SlotCache::fork(Row row, const std::vector<Row>& copies) {
  const std::int64_t length = lengths_.at(row);
  for (std::int64_t index = 0; index < num_layers(); ++index) {
    Layer& layer = at(index);
    const auto found = std::find(layer.residents.begin(), layer.residents.end(), row);
    if (found == layer.residents.end()) continue;
    const std::int64_t source = found - layer.residents.begin();
    const auto start = static_cast<std::int64_t>(layer.residents.size());
    enter(index, copies);
    const CacheView all = layer.pair->view(0, layer.pair->rows());
    for (std::size_t copy = 0; copy < copies.size(); ++copy) {
      copy_positions(layout_, all, source, all, start + static_cast<std::int64_t>(copy),
                     held(layer, row));
    }
  }
  for (const Row copy : copies) lengths_[copy] = length;
}

void SlotCache::clear() {
  ++version_;
  for (Layer& layer : layers_) {
    layer.reserved.clear();
    layer.residents.clear();
    give_back(layer);
  }
  lengths_.clear();
}

SlotCache::Size SlotCache::size_for(std::int64_t rows, std::int64_t positions) const {
  if (rows == 0) return {};
  return {row_class(rows, limits_.max_rows), capacity_class(positions, limits_.max_positions)};
}

std::int64_t SlotCache::pair_bytes(Size size) const {
  return size.rows == 0 ? 0 : 2 * pooled_size(layout_.nbytes(size.rows, size.positions));
}

std::int64_t SlotCache::reserved(Row row, std::int64_t layer) const {
  const std::map<Row, std::int64_t>& reserved = at(layer).reserved;
  const auto found = reserved.find(row);
  return found == reserved.end() ? 0 : found->second;
}

// Returns how many of a resident's positions the layer's buffers hold. A row that is about to leave
// the layer may have more positions, and so may any row in the draft layer, which holds no prompts.
std::int64_t SlotCache::held(const Layer& layer, Row row) const {
  return std::min(lengths_.at(row), layer.pair->capacity());
}

void SlotCache::grow(Layer& layer) {
  std::int64_t positions = 0;
  for (const auto& [row, reserved] : layer.reserved) positions = std::max(positions, reserved);
  Size size = size_for(static_cast<std::int64_t>(layer.reserved.size()), positions);
  if (layer.pair) {
    size = {std::max(size.rows, layer.pair->rows()),
            std::max(size.positions, layer.pair->capacity())};
    if (size.rows == layer.pair->rows() && size.positions == layer.pair->capacity()) return;
  }
  ++version_;
  ++layer.generation;
  if (!layer.pair) {
    layer.pair.emplace(pool_, layout_, size.rows, size.positions);
    return;
  }
  CachePair grown(pool_, layout_, size.rows, size.positions);
  const CacheView from = layer.pair->view(0, layer.pair->rows());
  const CacheView to = grown.view(0, size.rows);
  for (std::size_t slot = 0; slot < layer.residents.size(); ++slot) {
    const auto row = static_cast<std::int64_t>(slot);
    copy_positions(layout_, from, row, to, row, held(layer, layer.residents[slot]));
  }
  layer.pair->swap(grown);
}

void SlotCache::give_back(Layer& layer) {
  if (!layer.pair) return;
  layer.pair.reset();
  ++layer.generation;
}

}  // namespace skipdec::runtime
