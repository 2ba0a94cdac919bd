// Kernels that store codes row after row, as all but those for AMX do. The including file defines
// what multiply.inc.h needs, and
//   void store_codes(const std::uint8_t (&codes)[64], std::uint8_t* to)
#pragma once

#include "int8/multiply.inc.h"
#include "int8/quantize.inc.h"

namespace skipdec {
namespace {

struct RowLayout {
  static std::size_t bytes(std::int64_t rows, std::int64_t padded_depth) {
    return static_cast<std::size_t>(rows * code_stride(padded_depth));
  }
  static std::uint8_t* place(std::uint8_t* codes, std::int64_t row, std::int64_t k,
                             std::int64_t padded_depth) {
    return codes + row * code_stride(padded_depth) + k;
  }
  static void store(const std::uint8_t (&codes)[kDepthMultiple], std::uint8_t* to) {
    store_codes(codes, to);
  }
};

template <int kStreamRows = 0>
constexpr IntegerKernels kKernels{RowLayout::bytes, quantize<RowLayout>, multiply<kStreamRows>};

}  // namespace
}  // namespace skipdec
