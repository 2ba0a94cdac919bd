// Attention of new tokens to a key and value cache. It takes plain pointers and sizes and is
// independent of any runtime.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rotation/rotation.h"
#include "simd/tables.h"

namespace skipdec::attention {

// Element type of a cache row (one token's key or value of one head, D elements).
enum class CacheType {
  kFloat32,
  kFloat16,
  kBfloat16,
  kInt8,  // codes, then the row's float32 scale in its last four bytes
};

// One call: S new tokens for each of B sequences, whose caches already hold write_indices[b]
// tokens.
struct Call {
  std::int64_t batch = 0;      // B
  std::int64_t tokens = 0;     // S
  std::int64_t kv_heads = 0;   // M
  std::int64_t group = 0;      // query heads per KV head: N / M
  std::int64_t head_size = 0;  // D, a multiple of 8
  std::int64_t capacity = 0;   // T, in tokens
  float scale = 0;             // multiplies the scores
  // Token (b, s) is at (b·S + s)·stride: heads one after the other, D floats each.
  const float* query = nullptr;
  const float* key = nullptr;
  const float* value = nullptr;
  std::int64_t query_stride = 0;
  std::int64_t key_stride = 0;
  std::int64_t value_stride = 0;
  // Transforms of query and key heads before attention: norms, then a rotation.
  const float* query_norm = nullptr;            // [D], or nullptr for none
  const float* key_norm = nullptr;              // [D], or nullptr for none
  float norm_epsilon = 0;                       // added to the mean square
  Rotation rotation;                            // R = 2 · pairs, at most D
  const float* directions = nullptr;            // [B·S, R], by write_rotation, or nullptr for none
  const std::int64_t* write_indices = nullptr;  // [B], each in [0, T)
  void* key_cache = nullptr;                    // [B, M, T, D] of the cache's type; D + 4 for int8
  void* value_cache = nullptr;
  float* y = nullptr;  // [B, S, M·group·D]
};

// The queries [first, last) of one KV head, whose S · group queries are ordered by token and then
// by head of the group.
struct Span {
  std::int64_t sequence;
  std::int64_t kv_head;
  std::int64_t first;
  std::int64_t last;
};

// Kernels of one instruction set for one type of cache. A query's result has the same bits with any
// other queries in its span or call, and with every instruction set.
struct Kernels {
  // Writes the new tokens of one head to its cache, up to its capacity. Like ``attend``, it may use
  // scratch_floats(call, 1) floats of ``scratch``.
  void (*append)(const Call& call, std::int64_t sequence, std::int64_t kv_head,
                 float* scratch) noexcept;
  // Writes y for a span whose tokens have been appended. Reads only rows of the cache up to the
  // position of the span's last token.
  void (*attend)(const Call& call, const Span& span, float* scratch) noexcept;
};

// Returns the kernels of ``type`` for ``set``, or for the best simpler set that has kernels.
const Kernels& kernels_for(InstructionSet set, CacheType type);

// Number of tokens that the longest row's cache holds after the call.
std::int64_t longest(const Call& call);

// Maximum number of queries of a span for which its scratch memory stays in a core's cache.
std::int64_t span_limit(const Call& call);

// Number of floats of scratch memory, 64-byte aligned, for a span of ``queries``.
std::size_t scratch_floats(const Call& call, std::int64_t queries);

SKIPDEC_TABLES(const Kernels*, kernels)  // indexed by CacheType

}  // namespace skipdec::attention
