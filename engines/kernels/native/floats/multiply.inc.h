// Computes sums of packed rows and weights in registers of the instruction set that the including
// file names.
#include "floats/float_product.h"
#include "processor/instruction_set.h"
// clang-format off: order matters
#include "simd/begin.inc.h"
#include "simd/finish.inc.h"
// clang-format on

namespace skipdec {
namespace {

// Rows whose sums fit into registers, and blocks of columns for enough independent sums. For 2 to 8
// rows, Zen 4 and 5 read one stream of weights faster than several. Speeds relative to reading
// alone, on one thread of a Zen 5, float16 weights from memory: 2 rows 0.72 → 0.82, 4 rows 0.65 to
// 0.72 → 0.79, 8 rows 0.44 to 0.66 → 0.63 to 0.67. On two threads of a Zen 4, steps of SmolLM2-135M
// in float16 take 0.95 of the time for 4 rows and 0.87 for 8.
#if defined(SKIPDEC_AVX512)  // 32 registers of 16 lanes
constexpr int kPanelRows = 14;
constexpr int blocks_at_once(int rows, bool is_stream) {
  return is_stream && rows >= 2 && rows <= 8 ? 1 : rows <= 4 ? 4 : 2;
}
#elif defined(SKIPDEC_PORTABLE)
constexpr int kPanelRows = 4;
constexpr int blocks_at_once(int rows, bool) { return rows == 1 ? 2 : 1; }
#else  // 16 registers of 8 lanes, or 32 of 4
constexpr int kPanelRows = 6;
constexpr int blocks_at_once(int rows, bool) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }
#endif

// A panel of so few rows, on most processors any panel, is read where it is, because an L1 cache
// keeps 8 lines of rows any distance apart. On two threads of a Zen 4, steps of SmolLM2-135M in
// float16 take 0.96 of the time for 2 rows, 0.92 for 4 and 8; those of Llama-3.2-1B 0.91, 0.89 and
// 0.94. With 14 rows, prompts of 512 tokens take 1.2 times as long.
constexpr bool is_packed(std::int64_t panel_rows) { return panel_rows > 8; }

// Prefetch distance in bytes. One or two streams of weights outrun hardware prefetching: on Zen 3,
// two threads, SmolLM2's steps of 2 to 5 rows take 0.76 to 0.88 times as long with this and with
// tiles that leave registers for weights.
constexpr std::int64_t kAhead = 8192;
constexpr std::int64_t kLine = 64;

// Sizes of panels differ by at most one row: with up to 12 rows per panel, 13 rows are split into 7
// and 6, not into 12 and 1.
inline std::int64_t panels_of(std::int64_t rows) { return (rows + kPanelRows - 1) / kPanelRows; }

inline std::int64_t first_row(std::int64_t rows, std::int64_t panel) {
  return panel * rows / panels_of(rows);
}

// The rows of a larger panel are stored as [K, rows]; the last store of 16 lanes writes beyond its
// end.
inline float* packed_panel(const FloatRows& rows, std::int64_t depth, std::int64_t panel,
                           std::int64_t first) {
  return rows.packed + first * depth + panel * Vector::kLanes;
}

inline std::size_t packed_floats(std::int64_t rows, std::int64_t depth) {
  const std::int64_t panels = panels_of(rows), largest = (rows + panels - 1) / panels;
  if (!is_packed(largest)) return 0;
  return static_cast<std::size_t>(rows * depth + panels * Vector::kLanes);
}

void pack(const FloatWeights& weights, const FloatRows& rows, std::int64_t begin,
          std::int64_t end) noexcept {
  static_assert(kPanelRows <= Vector::kLanes);
  const std::int64_t depth = weights.depth;
  for (std::int64_t panel = begin; panel < end; ++panel) {
    const std::int64_t first = first_row(rows.count, panel);
    const std::int64_t count = first_row(rows.count, panel + 1) - first;
    if (!is_packed(count)) continue;
    float* to = packed_panel(rows, depth, panel, first);
    for (std::int64_t k = 0; k < depth; k += Vector::kLanes) {
      const int left = lanes_of(depth - k);
      Vector lines[Vector::kLanes];
      for (std::int64_t m = 0; m < Vector::kLanes; ++m) {
        const float* from = rows.values + (first + std::min(m, count - 1)) * depth + k;
        lines[m] = load_up_to(from, left);
      }
      transpose(lines);
      for (int i = 0; i < left; ++i, to += count) lines[i].store(to);
    }
  }
}

// ``x`` is [K, kRows], or [kRows, K] if they are few, starting at ``row``.
template <class Element, int kRows, int kBlocks>
inline void multiply_tile(const FloatWeights& weights, const FloatRows& rows, const float* x,
                          std::int64_t row, std::int64_t block) {
  constexpr std::int64_t kDepthOfLine = kLine / (Vector::kLanes * sizeof(Element));
  const std::int64_t depth = weights.depth;
  const auto* values = static_cast<const Element*>(weights.values) + block * depth * Vector::kLanes;
  Vector sums[kRows][kBlocks];
  for (auto& of_row : sums)
    for (Vector& each : of_row) each = Vector::broadcast(0.0F);
  for (std::int64_t k = 0; k < depth; ++k) {
    Vector loaded[kBlocks];
    for (int b = 0; b < kBlocks; ++b) {
      const Element* from = values + (b * depth + k) * Vector::kLanes;
      if (kRows > 1 && k % kDepthOfLine == 0) {
        __builtin_prefetch(reinterpret_cast<const char*>(from) + kAhead, 0, 2);
      }
      loaded[b] = Vector::load(from);
    }
    for (int m = 0; m < kRows; ++m) {
      const std::int64_t at = is_packed(kRows) ? k * kRows + m : m * depth + k;
      const Vector one = Vector::broadcast(x[at]);
      for (int b = 0; b < kBlocks; ++b) sums[m][b] = multiply_add(one, loaded[b], sums[m][b]);
    }
  }
  for (int b = 0; b < kBlocks; ++b) {
    with_columns(weights.columns, block + b, [&](const auto& columns) {
      for (int m = 0; m < kRows; ++m) columns.finish(rows, row + m, sums[m][b]);
    });
  }
}

template <class Element, bool kIsStream, int kRows>
void multiply_panel(const FloatWeights& weights, const FloatRows& rows, const float* x,
                    std::int64_t row, std::int64_t begin, std::int64_t end) {
  constexpr int kBlocks = blocks_at_once(kRows, kIsStream);
  std::int64_t block = begin;
  for (; block + kBlocks <= end; block += kBlocks) {
    multiply_tile<Element, kRows, kBlocks>(weights, rows, x, row, block);
  }
  for (; block < end; ++block) {
    multiply_tile<Element, kRows, 1>(weights, rows, x, row, block);
  }
}

using MultiplyPanel = void (*)(const FloatWeights&, const FloatRows&, const float* x,
                               std::int64_t row, std::int64_t begin, std::int64_t end);

template <class Element, bool kIsStream, int... kRows>
constexpr std::array<MultiplyPanel, sizeof...(kRows)> by_rows(
    std::integer_sequence<int, kRows...>) {
  return {multiply_panel<Element, kIsStream, kRows + 1>...};
}

template <class Element, bool kIsStream>
void multiply(const FloatWeights& weights, const FloatRows& rows, std::int64_t begin,
              std::int64_t end) noexcept {
  static constexpr auto kByRows =
      by_rows<Element, kIsStream>(std::make_integer_sequence<int, kPanelRows>{});
  const std::int64_t panels = panels_of(rows.count);
  // Runs all panels of some columns before the next columns, so that weights are read from memory
  // once and then from the cache.
  const std::int64_t step = panels == 1 ? end - begin : blocks_at_once(kPanelRows, kIsStream);
  for (std::int64_t block = begin; block < end; block += step) {
    std::int64_t first = 0;
    for (std::int64_t panel = 0; panel < panels; ++panel) {
      const std::int64_t next = first_row(rows.count, panel + 1);
      const float* x = is_packed(next - first) ? packed_panel(rows, weights.depth, panel, first)
                                               : rows.values + first * weights.depth;
      kByRows[static_cast<std::size_t>(next - first - 1)](weights, rows, x, first, block,
                                                          std::min(block + step, end));
      first = next;
    }
  }
}

template <bool kIsStream>
constexpr FloatKernels kKernels{panels_of,
                                packed_floats,
                                pack,
                                multiply<float, kIsStream>,
                                multiply<Float16, kIsStream>,
                                multiply<Bfloat16, kIsStream>};

}  // namespace

const FloatKernels& SKIPDEC_NAMED(float_kernels)() {
#if defined(SKIPDEC_AVX512)
  if (reads_streams(Zen::k4)) return kKernels<true>;
#endif
  return kKernels<false>;
}
}  // namespace skipdec

#include "simd/end.inc.h"
