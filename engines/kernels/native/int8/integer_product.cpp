#include "int8/integer_product.h"

#include <vector>

#include "int8/tables.h"
#include "operators/context.h"
#include "operators/scratch.h"

namespace skipdec {
namespace {

#if defined(__x86_64__)

// The number of rows from which AMX is faster than vectors.
constexpr std::int64_t kLeastTileRows = 7;

// Returns the result of ``kernels`` for a small product with partial tiles of rows and columns.
std::vector<float> known_product(const IntegerKernels& kernels) {
  constexpr std::int64_t kRows = 35, kDepth = 1100, kPaddedDepth = 1152, kColumns = 37, kBlocks = 3;
  std::vector<std::int8_t> codes(static_cast<std::size_t>(kBlocks * kPaddedDepth * kBlockColumns));
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::int8_t>(i * 89 >> 3);
  std::vector<float> values(static_cast<std::size_t>(kRows * kDepth));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(i * 53 % 255) - 127;
  const std::vector<float> scale(kColumns, 1);
  const std::vector<std::int32_t> offset(kColumns, 12345);
  std::vector<float> row_scale(kRows), result(static_cast<std::size_t>(kRows * kColumns));
  Scratch scratch;
  IntegerWeights weights;
  weights.padded_depth = kPaddedDepth;
  weights.columns.count = kColumns;
  weights.codes = codes.data();
  weights.scale = scale.data();
  weights.offset = offset.data();
  IntegerRows rows;
  rows.count = kRows;
  rows.depth = kDepth;
  rows.values = values.data();
  rows.codes = static_cast<std::uint8_t*>(scratch.reserve(kernels.code_bytes(kRows, kPaddedDepth)));
  rows.scale = row_scale.data();
  rows.result = result.data();
  kernels.quantize(weights, rows, 0, kRows);
  kernels.multiply(weights, rows, 0, kBlocks);
  return result;
}

bool tiles_are_right() {
  static const bool are =
      known_product(amx_integer_kernels()) == known_product(portable_integer_kernels());
#if defined(SKIPDEC_EMULATED)
  require(are, "the kernels for AMX multiply wrongly");  // tests must not fall back silently
#endif
  return are;
}

#endif

}  // namespace

const IntegerKernels& integer_kernels(InstructionSet set, std::int64_t rows) {
  static_cast<void>(rows);  // unused on some architectures
  switch (set) {
#if defined(__x86_64__)
    case InstructionSet::kAmx:
      if (rows >= kLeastTileRows && tiles_are_right()) return amx_integer_kernels();
      return avx512vnni_integer_kernels();
    case InstructionSet::kAvx512Vnni:
      return avx512vnni_integer_kernels();
    case InstructionSet::kAvxVnni:
      return avxvnni_integer_kernels();
    case InstructionSet::kAvx2:
      return avx2_integer_kernels();
#endif
#if defined(__aarch64__)
    case InstructionSet::kNeon:
      return neon_integer_kernels();
#endif
    default:
      return portable_integer_kernels();
  }
}

}  // namespace skipdec
