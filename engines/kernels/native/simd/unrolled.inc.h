// Loops whose counter is a compile-time constant in each iteration, so that the compiler can keep
// arrays that it indexes in registers.
#pragma once

namespace skipdec {
namespace {

template <class Body, int... kTurns>
inline __attribute__((always_inline)) void unrolled(const Body& body,
                                                    std::integer_sequence<int, kTurns...>) {
  (body(std::integral_constant<int, kTurns>{}), ...);
}

// Calls body(0), …, body(kCount - 1).
template <int kCount, class Body>
inline __attribute__((always_inline)) void unrolled(const Body& body) {
  unrolled(body, std::make_integer_sequence<int, kCount>{});
}

}  // namespace
}  // namespace skipdec
