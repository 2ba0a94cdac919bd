// A bounded pool of memory for KV caches, which keeps buffers for later requests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace skipdec::runtime {

// Memory aligned to 64 bytes, uninitialised; pages become resident when they are first touched.
class Buffer {
 public:
  Buffer() = default;
  // Throws Error (kMemory) if the memory cannot be allocated.
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

// A pool of buffers: a released buffer serves later requests of its size class. The pool holds at
// most as much as was ever in use at once; to allocate beyond that, it first evicts the buffers
// that have been idle longest. For one thread.
class BufferPool {
 public:
  explicit BufferPool(std::int64_t limit) : limit_(limit) {}

  // Returns a buffer of pooled_size(nbytes) bytes. Throws Error: kCapacity beyond the limit,
  // kMemory.
  Buffer acquire(std::int64_t nbytes);
  // Takes back a buffer that no binding uses; frees it if there is no memory to record it.
  void release(Buffer buffer) noexcept;

  std::int64_t in_use_bytes() const { return in_use_; }

 private:
  void drop_idle(std::int64_t allowed) noexcept;

  std::int64_t limit_;
  std::int64_t in_use_ = 0;
  std::int64_t most_ = 0;  // peak of in_use_
  std::int64_t idle_bytes_ = 0;
  std::vector<Buffer> idle_;  // the longest idle first
};

}  // namespace skipdec::runtime
