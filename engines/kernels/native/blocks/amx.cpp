// Products on AMX: one instruction multiplies 16 rows by 16 columns, 64 inputs deep.
//
// The sums of each block leave the tiles to be scaled and added as floats, which takes longer than
// the products. Weights are therefore loaded for 64 rows, whose sums stay in the L1 cache.
#if defined(__x86_64__)
#define SKIPDEC_AMX

#include "blocks/block_product.h"
#include "blocks/tables.h"
// clang-format off: order matters
#include "simd/begin.inc.h"
// clang-format on

namespace skipdec {
namespace {

constexpr int kGroup = 16;             // rows of a tile
constexpr int kGroupsTogether = 4;     // each with a tile for its sums
constexpr std::int64_t kAhead = 3072;  // prefetch distance of weights in bytes

}  // namespace
}  // namespace skipdec

#include "blocks/quantize.inc.h"
#include "simd/finish.inc.h"
#include "simd/unrolled.inc.h"
#if defined(SKIPDEC_EMULATED)
#include "simd/tiles_emulated.inc.h"
#else
#include "simd/tiles_amx.inc.h"
#endif

namespace skipdec {
namespace {

void prefetch(const std::uint8_t* weights, std::int64_t bytes) {
  for (std::int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(weights + kAhead + at);
}

template <int kBits>
struct Weights;

template <>
struct alignas(64) Weights<4> {
  std::int8_t bytes[1024] = {};  // [16, 16, 4]: 64 inputs, 4 of a column contiguous

  // Returns the codes of ``units`` of 32 inputs as a tile. With one unit, the tile's other half
  // stays zero, so the codes that are multiplied with it do not matter.
  const std::int8_t* tile(const std::uint8_t* from, std::int64_t units) {
    const __m512i low = _mm512_set1_epi8(15), zero_code = _mm512_set1_epi8(8);
    const std::int64_t end = panel_bytes(units * kUnitDepth, 4);
    for (std::int64_t at = 0; at < end; at += 64) {
      const __m512i both = _mm512_loadu_si512(from + at);
      const __m512i first = _mm512_and_si512(both, low);
      const __m512i second = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
      _mm512_store_si512(bytes + 2 * at, _mm512_sub_epi8(first, zero_code));
      _mm512_store_si512(bytes + 2 * at + 64, _mm512_sub_epi8(second, zero_code));
    }
    prefetch(from, end);
    return bytes;
  }
};

template <>
struct alignas(64) Weights<8> {
  std::int8_t bytes[1024] = {};

  // The same for 8 bits, where codes of 64 inputs stay in place.
  const std::int8_t* tile(const std::uint8_t* from, std::int64_t units) {
    const std::int64_t end = panel_bytes(units * kUnitDepth, 8);
    prefetch(from, end);
    if (units == 2) return reinterpret_cast<const std::int8_t*>(from);
    std::memcpy(bytes, from, static_cast<std::size_t>(end));
    return bytes;
  }
};

struct alignas(64) Sums {
  std::int32_t lanes[kGroup][kPanelColumns];
};

// Multiplies up to 64 rows, in groups begin … end - 1, with a panel.
template <int kBits>
class TileProduct {
 public:
  TileProduct(const BlockWeights& weights, const BlockRows& rows, std::int64_t begin,
              std::int64_t end, std::int64_t panel)
      : weights_(weights), rows_(rows), begin_(begin), end_(end), panel_(panel) {
    for (auto& of_group : y_)
      for (Vector& each : of_group) each = Vector::broadcast(0.0F);
  }

  void run(Tiles& tiles) {
    const std::int64_t bytes = panel_bytes(weights_.block_size, kBits);
    const std::uint8_t* packed = weights_.codes + panel_ * weights_.blocks * bytes;
    for (std::int64_t block = 0; block < weights_.blocks; ++block, packed += bytes) {
      multiply_block(tiles, packed, block);
      add_block(block);
    }
    with_columns(weights_.columns, panel_, [&](const auto& columns) {
      for (std::int64_t group = begin_; group < end_; ++group) {
        for (std::int64_t row = 0; row < rows_.rows_of(group); ++row) {
          columns.finish(rows_, group * kGroup + row, y_[group - begin_][row]);
        }
      }
    });
  }

 private:
  // Returns the start of the data of ``block`` of ``group``, in blocks of a row.
  std::int64_t place(std::int64_t group, std::int64_t block) const {
    return group * kGroup * weights_.blocks + block * rows_.rows_of(group);
  }

  // Tiles 0 to 3 hold sums, 4 and 5 weights, 6 and 7 codes, 64 bytes of 16 rows. Beyond a block of
  // 32 inputs or the end of a group, the codes belong to other rows.
  void multiply_block(Tiles& tiles, const std::uint8_t* packed, std::int64_t block) {
    const std::int64_t size = weights_.block_size;
    const std::int64_t units = std::min<std::int64_t>(2, size / kUnitDepth);
    const bool has_two = size > 64;
    tiles.template load<4>(loaded_[0].tile(packed, units));
    if (has_two) {
      tiles.template load<5>(loaded_[1].tile(packed + panel_bytes(2 * kUnitDepth, kBits), units));
    }
    unrolled<kGroupsTogether>([&](auto g) {
      if (begin_ + g >= end_) return;
      const std::int8_t* codes = rows_.codes + place(begin_ + g, block) * size;
      tiles.template zero<g>();
      tiles.template load<6>(codes, size);
      tiles.template add_signed_products<g, 6, 4>();
      if (has_two) {
        tiles.template load<7>(codes + 64, size);
        tiles.template add_signed_products<g, 7, 5>();
      }
      tiles.template store<g>(sums_[g].lanes);
    });
  }

  void add_block(std::int64_t block) {
    const std::int64_t scales = (panel_ * weights_.blocks + block) * kPanelColumns;
    const Vector of_columns = Vector::load(weights_.scale + scales);
    for (std::int64_t group = begin_; group < end_; ++group) {
      const float* row_scale = rows_.scale + place(group, block);
      Vector* y = y_[group - begin_];
      for (std::int64_t row = 0; row < rows_.rows_of(group); ++row) {
        const __m512i sums = _mm512_load_si512(sums_[group - begin_].lanes[row]);
        const Vector both = of_columns * Vector::broadcast(row_scale[row]);
        y[row] = multiply_add(Vector{_mm512_cvtepi32_ps(sums)}, both, y[row]);
      }
    }
  }

  const BlockWeights& weights_;
  const BlockRows& rows_;
  std::int64_t begin_, end_, panel_;
  Weights<kBits> loaded_[2];
  Sums sums_[kGroupsTogether];
  Vector y_[kGroupsTogether][kGroup];
};

template <int kBits>
void multiply(const BlockWeights& weights, const BlockRows& rows, std::int64_t begin,
              std::int64_t end) noexcept {
  Tiles tiles;
  for (std::int64_t group = 0; group < rows.groups(); group += kGroupsTogether) {
    const std::int64_t group_end = std::min(rows.groups(), group + kGroupsTogether);
    for (std::int64_t panel = begin; panel < end; ++panel) {
      TileProduct<kBits>(weights, rows, group, group_end, panel).run(tiles);
    }
  }
}

// Products of signed codes need no correction.
template <int kBits>
constexpr BlockKernels kKernels{kGroup, quantize<0>, multiply<kBits>};

}  // namespace

const BlockKernels& SKIPDEC_NAMED(block_kernels)(int bits) {
  return bits == 8 ? kKernels<8> : kKernels<4>;
}
}  // namespace skipdec

#include "simd/end.inc.h"
#endif  // __x86_64__
