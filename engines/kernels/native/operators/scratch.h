// Scratch memory of a thread that calls kernels, kept between calls.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace skipdec {

// It grows and never shrinks; make it thread_local. Its memory is 64-byte aligned, uninitialised,
// and valid until the same thread asks for more.
class Scratch {
 public:
  void* reserve(std::size_t bytes) {
    if (bytes > capacity_) {
      constexpr std::size_t kLine = 64;
      memory_.reset();
      capacity_ = 0;
      const std::size_t rounded = (bytes + kLine - 1) / kLine * kLine;
      memory_.reset(std::aligned_alloc(kLine, rounded));
      if (memory_ == nullptr) throw std::bad_alloc();
      capacity_ = rounded;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  std::unique_ptr<void, Free> memory_;
  std::size_t capacity_ = 0;
};

}  // namespace skipdec
