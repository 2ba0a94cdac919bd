// Memory of KV caches: bounded, and kept for later requests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace skipdec::runtime {

// Memory on 64-byte borders, contents undefined; pages become resident when they are first touched.
class Buffer {
 public:
  Buffer() = default;
  // Throws Error (kMemory) if there is no such memory.
  explicit Buffer(std::int64_t nbytes);

  std::byte* data() const { return memory_.get(); }
  std::int64_t nbytes() const { return nbytes_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept;
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::int64_t nbytes_ = 0;
};

// Released buffers serve later requests of the same size class. All that is held is at most what
// was in use at once: an allocation beyond it first frees what has been idle longest. One thread.
class BufferPool {
 public:
  explicit BufferPool(std::int64_t limit) : limit_(limit) {}

  // A buffer of pooled_size(nbytes) bytes. Throws Error (kCapacity) beyond the limit, kMemory.
  Buffer acquire(std::int64_t nbytes);
  // Takes back a buffer that nothing is bound to any more.
  void release(Buffer buffer);

  std::int64_t limit() const { return limit_; }
  std::int64_t in_use_bytes() const { return in_use_; }

 private:
  void drop_idle(std::int64_t allowed);

  std::int64_t limit_;
  std::int64_t in_use_ = 0;
  std::int64_t most_ = 0;  // in use at once
  std::int64_t idle_bytes_ = 0;
  std::vector<Buffer> idle_;  // the longest idle first
};

}  // namespace skipdec::runtime
