// Products on AMX: one instruction multiplies 16 rows by 16 columns, 64 deep. Used from 7 rows on.
#if defined(__x86_64__)
#define SKIPDEC_AMX

#include "int8/integer_product.h"
#include "int8/tables.h"
// clang-format off: order matters
#include "simd/begin.inc.h"
// clang-format on

namespace skipdec {
namespace {

constexpr std::int64_t kTileRows = 16;
constexpr std::int64_t kTileBytes = 1024;
// The number of blocks whose sums stay in the L1 cache while the rows' next codes are loaded.
constexpr std::int64_t kGroupBlocks = 8;
// The number of tiles whose codes of 32 rows, 32 KB, stay in the L1 cache.
constexpr std::int64_t kDepthTiles = 16;

// Stores codes as [rows / 16, depth / 64] tiles of 16 rows and 64 bytes.
struct TileLayout {
  static std::size_t bytes(std::int64_t rows, std::int64_t padded_depth) {
    return static_cast<std::size_t>((rows + kTileRows - 1) / kTileRows * kTileRows * padded_depth);
  }
  static std::uint8_t* place(std::uint8_t* codes, std::int64_t row, std::int64_t k,
                             std::int64_t padded_depth) {
    return codes + row / kTileRows * kTileRows * padded_depth + k * kTileRows +
           row % kTileRows * kDepthMultiple;
  }
  static void store(const std::uint8_t (&codes)[kDepthMultiple], std::uint8_t* to) {
    std::memcpy(to, codes, sizeof codes);
  }
};

struct alignas(64) TileSums {
  std::int32_t lanes[kTileRows][kBlockColumns];

  // Sums of one row; `less` subtracts ``offset`` from them.
  struct Row {
    const std::int32_t* lanes;
    Vector less(const std::int32_t* offset) const {
      const __m512i sums = _mm512_loadu_si512(lanes);
      return {_mm512_cvtepi32_ps(_mm512_sub_epi32(sums, _mm512_loadu_si512(offset)))};
    }
  };
  Row row(std::int64_t m) const { return {lanes[m]}; }
};

}  // namespace
}  // namespace skipdec

#include "int8/finish.inc.h"
#include "int8/quantize.inc.h"
#include "simd/unrolled.inc.h"
#if defined(SKIPDEC_EMULATED)
#include "simd/tiles_emulated.inc.h"
#else
#include "simd/tiles_amx.inc.h"
#endif

namespace skipdec {
namespace {

// Some tiles of rows and some blocks of columns, in a part of the depth.
struct Part {
  const std::uint8_t* codes;    // of the first tile of rows
  std::int64_t codes_stride;    // to the next tile of rows
  const std::int8_t* weights;   // of the first block
  std::int64_t weights_stride;  // to the next block
  std::int64_t tiles;           // along the depth
  bool is_first;                // sums start at 0
  bool is_cold;                 // weights are not in a cache yet
};

inline void prefetch_tile(const std::int8_t* weights) {
  constexpr std::int64_t kAhead = 4096;
  for (std::int64_t line = 0; line < kTileBytes; line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(weights) + kAhead + line, _MM_HINT_T0);
  }
}

// Tiles 0 to 3 hold sums, 4 and 5 codes, 6 and 7 weights.
template <int kRowTiles, int kBlocks>
void add_part(Tiles& tiles, const Part& part, TileSums* sums) {
  static_assert(kRowTiles * kBlocks <= 4 && kRowTiles <= 2);
  unrolled<kRowTiles>([&](auto r) {
    unrolled<kBlocks>([&](auto b) {
      constexpr int kSums = r * kBlocks + b;
      if (part.is_first) {
        tiles.template zero<kSums>();
      } else {
        tiles.template load<kSums>(sums + r * kGroupBlocks + b);
      }
    });
  });
  for (std::int64_t at = 0; at < part.tiles * kTileBytes; at += kTileBytes) {
    unrolled<kRowTiles>(
        [&](auto r) { tiles.template load<4 + r>(part.codes + r * part.codes_stride + at); });
    unrolled<kBlocks>([&](auto b) {
      const std::int8_t* weights = part.weights + b * part.weights_stride + at;
      tiles.template load<6 + b % 2>(weights);
      if (part.is_cold) prefetch_tile(weights);
      unrolled<kRowTiles>(
          [&](auto r) { tiles.template add_products<r * kBlocks + b, 4 + r, 6 + b % 2>(); });
    });
  }
  unrolled<kRowTiles>([&](auto r) {
    unrolled<kBlocks>(
        [&](auto b) { tiles.template store<r * kBlocks + b>(sums + r * kGroupBlocks + b); });
  });
}

// Multiplies ``kRowTiles`` tiles of rows from ``row`` with blocks begin … end - 1, at most 8.
template <int kRowTiles>
void multiply_group(Tiles& tiles, const IntegerWeights& weights, const IntegerRows& rows,
                    std::int64_t row, std::int64_t begin, std::int64_t end) {
  constexpr int kBlocks = 4 / kRowTiles;
  const std::int64_t stride = weights.padded_depth * kBlockColumns;  // also between tiles of codes
  const std::int64_t depth_tiles = weights.padded_depth / kDepthMultiple;
  const std::int64_t step = kRowTiles == 1 ? depth_tiles : kDepthTiles;
  TileSums sums[kRowTiles][kGroupBlocks];
  for (std::int64_t t = 0; t < depth_tiles; t += step) {
    const std::uint8_t* codes = rows.codes + row * weights.padded_depth + t * kTileBytes;
    const std::int64_t tiles_of_part = std::min(step, depth_tiles - t);
    const auto part_of = [&](std::int64_t block) {
      const std::int8_t* packed = weights.codes + block * stride + t * kTileBytes;
      return Part{codes, stride, packed, stride, tiles_of_part, t == 0, row == 0};
    };
    std::int64_t block = begin;
    for (; block + kBlocks <= end; block += kBlocks) {
      add_part<kRowTiles, kBlocks>(tiles, part_of(block), &sums[0][block - begin]);
    }
    for (; block < end; ++block) {
      add_part<kRowTiles, 1>(tiles, part_of(block), &sums[0][block - begin]);
    }
  }
  const std::int64_t count = std::min(rows.count - row, kRowTiles * kTileRows);
  for (std::int64_t block = begin; block < end; ++block) {
    finish_block(weights, rows, row, count, block, [&](std::int64_t m) {
      return sums[m / kTileRows][block - begin].row(m % kTileRows);
    });
  }
}

void multiply(const IntegerWeights& weights, const IntegerRows& rows, std::int64_t begin,
              std::int64_t end) noexcept {
  Tiles tiles;
  for (std::int64_t block = begin; block < end; block += kGroupBlocks) {
    const std::int64_t group_end = std::min(end, block + kGroupBlocks);
    std::int64_t row = 0;
    for (; row + kTileRows < rows.count; row += 2 * kTileRows) {
      multiply_group<2>(tiles, weights, rows, row, block, group_end);
    }
    if (row < rows.count) multiply_group<1>(tiles, weights, rows, row, block, group_end);
  }
}

constexpr IntegerKernels kKernels{TileLayout::bytes, quantize<TileLayout>, multiply};

}  // namespace

const IntegerKernels& SKIPDEC_NAMED(integer_kernels)() { return kKernels; }
}  // namespace skipdec

#include "simd/end.inc.h"
#endif  // __x86_64__
