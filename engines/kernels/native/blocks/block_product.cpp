#include "blocks/block_product.h"

#include <vector>

#include "blocks/tables.h"
#include "operators/context.h"
#include "operators/scratch.h"

namespace skipdec {
namespace {

#if defined(__x86_64__)

// The number of rows from which tiles are used; with fewer, most of a tile's work would be wasted.
constexpr std::int64_t kLeastTileRows = 12;

// Returns the result of ``kernels`` for a small product with partial tiles of rows, columns and
// inputs.
std::vector<float> known_product(const BlockKernels& kernels, int bits, std::int64_t block_size) {
  constexpr std::int64_t kRows = 83, kDepth = 300, kColumns = 37;
  BlockWeights weights;
  weights.bits = bits;
  weights.block_size = block_size;
  weights.blocks = (kDepth + block_size - 1) / block_size;
  weights.columns.count = kColumns;
  const std::int64_t lanes = weights.panels() * kPanelColumns;
  std::vector<std::uint8_t> codes(
      static_cast<std::size_t>(weights.panels() * panel_bytes(weights.padded_depth(), bits)));
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i * 89 >> 3);
  const std::vector<Bfloat16> scale(static_cast<std::size_t>(lanes * weights.blocks), {0x3f80});
  weights.codes = codes.data();
  weights.scale = scale.data();
  std::vector<float> values(kRows * kDepth), result(kRows * kColumns);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(i * 53 % 255) - 127;
  std::vector<float> row_scale(static_cast<std::size_t>(kRows * weights.blocks));
  std::vector<std::int32_t> correction(row_scale.size());
  Scratch scratch;
  BlockRows rows;
  rows.count = kRows;
  rows.depth = kDepth;
  rows.group = kernels.group;
  rows.values = values.data();
  rows.codes = static_cast<std::int8_t*>(scratch.reserve(rows.code_bytes(weights)));
  rows.scale = row_scale.data();
  rows.correction = correction.data();
  rows.result = result.data();
  kernels.quantize(weights, rows, 0, rows.groups());
  kernels.multiply(weights, rows, 0, weights.panels());
  return result;
}

bool are_tiles_right(int bits) {
  for (const std::int64_t block_size : {32, 64, 128}) {
    if (known_product(amx_block_kernels(bits), bits, block_size) !=
        known_product(portable_block_kernels(bits), bits, block_size)) {
      return false;
    }
  }
  return true;
}

bool tiles_are_right() {
  static const bool are = are_tiles_right(4) && are_tiles_right(8);
#if defined(SKIPDEC_EMULATED)
  require(are, "the kernels for AMX multiply wrongly");  // tests must not fall back silently
#endif
  return are;
}

#endif

}  // namespace

const BlockKernels& block_kernels(InstructionSet set, int bits, std::int64_t rows) {
  static_cast<void>(rows);  // unused on some architectures
  switch (set) {
#if defined(__x86_64__)
    case InstructionSet::kAmx:
      if (rows >= kLeastTileRows && tiles_are_right()) return amx_block_kernels(bits);
      return avx512vnni_block_kernels(bits);
    case InstructionSet::kAvx512Vnni:
      return avx512vnni_block_kernels(bits);
    case InstructionSet::kAvxVnni:
      return avxvnni_block_kernels(bits);
    case InstructionSet::kAvx2:
      return avx2_block_kernels(bits);
#elif defined(__aarch64__)
    case InstructionSet::kNeon:
      return neon_block_kernels(bits);
#endif
    default:
      return portable_block_kernels(bits);
  }
}

}  // namespace skipdec
