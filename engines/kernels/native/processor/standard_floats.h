// The floating-point control of a thread: its rounding and its treatment of subnormal numbers.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace skipdec {

// While an object lives, the calling thread rounds to nearest and keeps subnormal numbers, as IEEE
// 754 requires. Other code may have switched them off for one thread, e.g. by
// torch.set_flush_denormal; results would then depend on the thread that computed them.
class StandardFloats {
 public:
  StandardFloats() : before_(control()), standard_((before_ & ~kControl) | kStandard) {
    if (standard_ != before_) set_control(standard_);
  }
  ~StandardFloats() {
    if (standard_ != before_) set_control(before_);
  }
  StandardFloats(const StandardFloats&) = delete;
  StandardFloats& operator=(const StandardFloats&) = delete;

 private:
#if defined(__x86_64__)
  using Control = std::uint32_t;                // MXCSR
  static constexpr Control kControl = 0xffc0;   // without the flags of exceptions
  static constexpr Control kStandard = 0x1f80;  // all exceptions masked
  static Control control() { return _mm_getcsr(); }
  static void set_control(Control value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
  using Control = std::uint64_t;  // FPCR
  static constexpr Control kControl = ~Control{0};
  static constexpr Control kStandard = 0;
  static Control control() {
    Control value = 0;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void set_control(Control value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
#else
  using Control = int;
  static constexpr Control kControl = 0, kStandard = 0;
  static Control control() { return 0; }
  static void set_control(Control) {}
#endif

  Control before_;
  Control standard_;
};

}  // namespace skipdec
