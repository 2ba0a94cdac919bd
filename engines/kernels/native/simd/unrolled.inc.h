// Loops whose counter is a constant in each turn, so that arrays they index can live in registers.
#pragma once

namespace skipdec {
namespace {

template <class Body, int... kTurns>
inline __attribute__((always_inline)) void unrolled(const Body& body,
                                                    std::integer_sequence<int, kTurns...>) {
  (body(std::integral_constant<int, kTurns>{}), ...);
}

// body(0), …, body(kCount - 1)
template <int kCount, class Body>
inline __attribute__((always_inline)) void unrolled(const Body& body) {
  unrolled(body, std::make_integer_sequence<int, kCount>{});
}

}  // namespace
}  // namespace skipdec
