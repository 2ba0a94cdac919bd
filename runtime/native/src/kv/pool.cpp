#include "kv/pool.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <string>
#include <utility>

#include "errors.h"
#include "kv/layout.h"

namespace skipdec::runtime {

namespace {

constexpr std::int64_t kAlignment = 64;  // a cache line, and the widest vector

}  // namespace

Buffer::Buffer(std::int64_t nbytes) : nbytes_(nbytes) {
  const std::int64_t rounded = (nbytes + kAlignment - 1) / kAlignment * kAlignment;
  memory_.reset(static_cast<std::byte*>(
      std::aligned_alloc(static_cast<std::size_t>(kAlignment), static_cast<std::size_t>(rounded))));
  if (memory_ == nullptr) {
    throw Error(Status::kMemory, "memory of this machine",
                std::to_string(nbytes) +
                    " bytes could not be allocated; use a smaller batch or shorter sequences");
  }
}

void Buffer::Free::operator()(std::byte* memory) const noexcept { std::free(memory); }

Buffer BufferPool::acquire(std::int64_t nbytes) {
  const std::int64_t size = pooled_size(nbytes);
  if (in_use_ + size > limit_) {
    throw Error(Status::kCapacity, "KV memory",
                std::to_string(size) + " bytes more than the " + std::to_string(in_use_) +
                    " in use pass the limit of " + std::to_string(limit_) +
                    "; raise kv_memory or lower max_batch_size");
  }
  const auto found = std::find_if(idle_.begin(), idle_.end(),
                                  [&](const Buffer& each) { return each.nbytes() == size; });
  Buffer buffer;
  if (found != idle_.end()) {
    buffer = std::move(*found);
    idle_bytes_ -= size;
    idle_.erase(found);
  } else {
    drop_idle(most_ - in_use_ - size);
    buffer = Buffer(size);
  }
  in_use_ += size;
  most_ = std::max(most_, in_use_);
  return buffer;
}

void BufferPool::release(Buffer buffer) noexcept {
  const std::int64_t size = buffer.nbytes();
  in_use_ -= size;
  try {
    idle_.push_back(std::move(buffer));
  } catch (const std::bad_alloc&) {
    return;
  }
  idle_bytes_ += size;
  drop_idle(most_ - in_use_);
}

void BufferPool::drop_idle(std::int64_t allowed) noexcept {
  std::size_t dropped = 0;
  while (dropped < idle_.size() && idle_bytes_ > allowed) idle_bytes_ -= idle_[dropped++].nbytes();
  idle_.erase(idle_.begin(), idle_.begin() + static_cast<std::ptrdiff_t>(dropped));
}

}  // namespace skipdec::runtime
