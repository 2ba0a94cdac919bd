// The key and value buffers of one layer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv/layout.h"
#include "kv/pool.h"

namespace skipdec::runtime {

// The key and value [rows, N, capacity, W] that a layer writes; it does not own the memory.
struct CacheView {
  std::byte* key = nullptr;
  std::byte* value = nullptr;
  std::int64_t rows = 0;
  std::int64_t capacity = 0;
};

// Copies keys and values of a row's first ``length`` positions to a row of another cache, whose
// capacity may differ.
void copy_positions(const KVLayout& layout, const CacheView& source, std::int64_t source_row,
                    const CacheView& target, std::int64_t target_row, std::int64_t length);

// Key and value buffers from ``pool``, returned to the pool by the destructor.
class CachePair {
 public:
  // Throws Error (kCapacity, kMemory), and then takes nothing.
  CachePair(BufferPool& pool, const KVLayout& layout, std::int64_t rows, std::int64_t capacity);
  ~CachePair();
  CachePair(const CachePair&) = delete;
  CachePair& operator=(const CachePair&) = delete;

  // Exchanges the buffers of two pairs from one pool.
  void swap(CachePair& other) noexcept;

  std::int64_t rows() const { return rows_; }
  std::int64_t capacity() const { return capacity_; }
  // Returns rows ``start`` ... ``start + rows`` - 1.
  CacheView view(std::int64_t start, std::int64_t rows) const;

 private:
  BufferPool& pool_;
  KVLayout layout_;
  std::int64_t rows_, capacity_;
  Buffer key_, value_;
};

}  // namespace skipdec::runtime
