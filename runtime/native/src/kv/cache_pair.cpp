#include "kv/cache_pair.h"

#include <cstring>
#include <utility>

namespace skipdec::runtime {

void copy_positions(const KVLayout& layout, const CacheView& source, std::int64_t source_row,
                    const CacheView& target, std::int64_t target_row, std::int64_t length) {
  const std::int64_t position = layout.position_bytes();
  const std::int64_t from = source_row * layout.num_heads * source.capacity * position;
  const std::int64_t to = target_row * layout.num_heads * target.capacity * position;
  const auto nbytes = static_cast<std::size_t>(length * position);
  for (std::int64_t head = 0; head < layout.num_heads; ++head) {
    const std::int64_t head_from = from + head * source.capacity * position;
    const std::int64_t head_to = to + head * target.capacity * position;
    std::memcpy(target.key + head_to, source.key + head_from, nbytes);
    std::memcpy(target.value + head_to, source.value + head_from, nbytes);
  }
}

CachePair::CachePair(BufferPool& pool, const KVLayout& layout, std::int64_t rows,
                     std::int64_t capacity)
    : pool_(pool), layout_(layout), rows_(rows), capacity_(capacity) {
  const std::int64_t nbytes = layout.nbytes(rows, capacity);
  key_ = pool.acquire(nbytes);
  try {
    value_ = pool.acquire(nbytes);
  } catch (...) {
    pool.release(std::move(key_));
    throw;
  }
}

CachePair::~CachePair() {
  pool_.release(std::move(key_));
  pool_.release(std::move(value_));
}

void CachePair::swap(CachePair& other) noexcept {
  std::swap(rows_, other.rows_);
  std::swap(capacity_, other.capacity_);
  std::swap(key_, other.key_);
  std::swap(value_, other.value_);
}

CacheView CachePair::view(std::int64_t start, std::int64_t rows) const {
  const std::int64_t offset = layout_.nbytes(start, capacity_);
  return {key_.data() + offset, value_.data() + offset, rows, capacity_};
}

}  // namespace skipdec::runtime
