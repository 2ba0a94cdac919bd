// SlotCache: keys and values of running rows, each in the layers that it still runs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "kv/cache_pair.h"
#include "kv/reservation.h"

namespace skipdec::runtime {

// The limits of the slots of a running batch.
struct Limits {
  std::int64_t max_rows = 0;
  std::int64_t max_positions = 0;  // per row, prompt and text
  std::int64_t kv_bytes = 0;
};

// Keys and values of all running rows, layer by layer.
//
// A layer's residents occupy its slots 0 ... n-1, so that the layer is bound to the first n slots
// of one buffer. A row enters at the tail. When it leaves a layer, the last resident's positions
// move into the gap, in that layer only. On admission, rows reserve all memory that they will need.
// Buffers grow in size classes, one layer at a time, and return to the pool when a layer has no
// reservations left.
//
// Worked: rows 7, 8, 9 are in slots 0, 1, 2 of layer 3. After row 7 leaves the layer, rows 9, 8 are
// in slots 0, 1.
class SlotCache {
 public:
  using Row = std::int64_t;

  SlotCache(BufferPool& pool, const KVLayout& layout, std::int64_t num_layers,
            const Limits& limits);

  const KVLayout& layout() const { return layout_; }
  const Limits& limits() const { return limits_; }
  std::int64_t num_layers() const { return static_cast<std::int64_t>(layers_.size()); }

  // Incremented whenever a row enters or leaves a layer or a buffer moves.
  std::uint64_t version() const { return version_; }
  // Changes with the layer's buffers; older bindings are invalid.
  std::uint64_t generation(std::int64_t layer) const { return at(layer).generation; }
  // The rows in the layer's slots, in order.
  const std::vector<Row>& residents(std::int64_t layer) const { return at(layer).residents; }
  // Returns ``rows`` slots of the layer from slot ``start`` on.
  CacheView slots(std::int64_t layer, std::int64_t start, std::int64_t rows) const {
    return at(layer).pair->view(start, rows);
  }

  // Returns the peak of bytes in use if these reservations are added to the present ones, including
  // copies while buffers grow. Their prompts take ``prompt_bytes`` more while they run.
  std::int64_t bytes_with(const std::vector<const Reservation*>& reservations,
                          std::int64_t prompt_bytes) const;
  // Returns the bytes that these rows take if there are no others. Any thread may call it.
  std::int64_t bytes_alone(const Reservation& reservation, std::int64_t rows) const;

  // Reserves memory that `bytes_with` found to fit.
  void reserve(const std::vector<Row>& rows, const std::vector<const Reservation*>& reservations);
  // Gives rows with a reservation the layer's next slots.
  CacheView enter(std::int64_t layer, const std::vector<Row>& rows);
  // Returns the number of positions that the row has reserved in the layer; 0 once it has left.
  std::int64_t reserved(Row row, std::int64_t layer) const;
  // Returns the number of positions of a row that are written.
  std::int64_t length(Row row) const { return lengths_.at(row); }
  // Sets how many positions of a row are written, in each layer where it resides.
  void set_length(Row row, std::int64_t length) { lengths_[row] = length; }
  // Removes the row from a layer for good; does nothing if it is not there.
  void leave(Row row, std::int64_t layer);
  // Removes a row that has ended from all layers.
  void release(Row row);
  // Copies a row, in each layer where it resides, to others with the same reservation.
  void fork(Row row, const std::vector<Row>& copies);
  // Returns all buffers to the pool.
  void clear();

 private:
  struct Layer {
    std::map<Row, std::int64_t> reserved;  // positions
    std::vector<Row> residents;            // by slot
    std::optional<CachePair> pair;
    std::uint64_t generation = 0;
  };
  struct Size {
    std::int64_t rows = 0, positions = 0;
  };

  Layer& at(std::int64_t layer) { return layers_[static_cast<std::size_t>(layer)]; }
  const Layer& at(std::int64_t layer) const { return layers_[static_cast<std::size_t>(layer)]; }
  Size size_for(std::int64_t rows, std::int64_t positions) const;
  std::int64_t pair_bytes(Size size) const;
  std::int64_t held(const Layer& layer, Row row) const;
  void grow(Layer& layer);
  static void give_back(Layer& layer);

  BufferPool& pool_;
  KVLayout layout_;
  Limits limits_;
  std::uint64_t version_ = 0;
  std::vector<Layer> layers_;
  std::unordered_map<Row, std::int64_t> lengths_;
};

}  // namespace skipdec::runtime
