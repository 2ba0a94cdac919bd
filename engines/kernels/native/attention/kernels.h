// Attention of new tokens to a key and value cache, written against no runtime: plain pointers and
// sizes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "processor/instruction_set.h"

namespace skipdec::attention {

// What a row of the cache (one token's key or value of one head, D elements) is made of.
enum class CacheType {
  kFloat32,
  kFloat16,
  kBfloat16,
  kInt8,  // codes, then the row's float32 scale in its last four bytes
};

// One call: S new tokens for each of B sequences, whose caches hold write_indices[b] tokens
// already.
struct Call {
  std::int64_t batch = 0;      // B
  std::int64_t tokens = 0;     // S
  std::int64_t kv_heads = 0;   // M
  std::int64_t group = 0;      // query heads for each of them: N / M
  std::int64_t head_size = 0;  // D, a multiple of 8
  std::int64_t capacity = 0;   // T, in tokens
  float scale = 0;             // of the scores
  // Of token (b, s), at (b·S + s)·stride: heads one after the other, D floats each.
  const float* query = nullptr;
  const float* key = nullptr;
  const float* value = nullptr;
  std::int64_t query_stride = 0;
  std::int64_t key_stride = 0;
  std::int64_t value_stride = 0;
  const std::int64_t* write_indices = nullptr;  // [B], each in [0, T)
  void* key_cache = nullptr;                    // [B, M, T, D] of the cache's type, or D + 4 codes
  void* value_cache = nullptr;
  float* y = nullptr;  // [B, S, M·group·D]
};

// Some queries of one head of the cache: of its S · group, counted tokens first, then the heads of
// a group, those in [first, last).
struct Span {
  std::int64_t sequence;
  std::int64_t kv_head;
  std::int64_t first;
  std::int64_t last;
};

// The kernels of one instruction set for one type of cache. A query's result has the same bits
// whatever the others in its span or its call are, and with every instruction set.
struct Kernels {
  // Write the new tokens of one head to its cache, as far as they fit into its capacity.
  void (*append)(const Call& call, std::int64_t sequence, std::int64_t kv_head) noexcept;
  // Write y for a span, whose tokens have been appended. Only rows of the cache are read whose
  // position is at most that of the span's last token.
  void (*attend)(const Call& call, const Span& span, float* scratch) noexcept;
};

// Of ``type`` for ``set``, or for the best plainer one that there are kernels for.
const Kernels& kernels_for(InstructionSet set, CacheType type);

// How many queries a span should have at most, so that its scratch memory stays in a core's cache.
std::int64_t span_limit(const Call& call);

// Floats of scratch memory, 64-byte aligned, for a span of ``queries``.
std::size_t scratch_floats(const Call& call, std::int64_t queries);

// Tables by CacheType, one for each instruction set that has its own.
const Kernels* portable_kernels();
const Kernels* neon_kernels();
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();

}  // namespace skipdec::attention
