#include "attention/operator.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "operators/scratch.h"

namespace skipdec {
namespace {

using abi::ElementType;
using attention::CacheType;
using attention::Call;

constexpr std::size_t kInvFreq = 6, kQueryNorm = 7, kKeyNorm = 8;

CacheType cache_type_of(ElementType type) {
  switch (type) {
    case ElementType::kFloat:
      return CacheType::kFloat32;
    case ElementType::kFloat16:
      return CacheType::kFloat16;
    case ElementType::kBfloat16:
      return CacheType::kBfloat16;
    case ElementType::kInt8:
      return CacheType::kInt8;
    default:
      throw OperatorError("past_key must be float32, float16, bfloat16 or int8");
  }
}

// Returns the bytes of the scale that ends each row of an int8 cache; 0 for other types.
std::int64_t scale_width(ElementType type) {
  return type == ElementType::kInt8 ? static_cast<std::int64_t>(sizeof(float)) : 0;
}

bool same_shape(const Tensor& a, const Tensor& b) {
  return a.type == b.type && a.rank == b.rank && a.dims == b.dims;
}

void check_cache(const Tensor& key, const Tensor& value, std::int64_t batch,
                 std::int64_t kv_heads) {
  require(key.rank == 4 && key.dims[0] == batch && key.dims[1] == kv_heads,
          "past_key must be [batch, kv_num_heads, capacity, width]");
  require(same_shape(key, value), "past_value must have past_key's shape and type");
}

void check_positions(const Call& call) {
  for (std::int64_t b = 0; b < call.batch; ++b) {
    const std::int64_t position = call.write_indices[b];
    if (position >= 0 && position < call.capacity) continue;
    throw OperatorError("write_indices[" + std::to_string(b) + "] is " + std::to_string(position) +
                        "; the cache has positions 0 to " + std::to_string(call.capacity - 1));
  }
}

// Finds the keys and values of new tokens, which are separate inputs or packed after the queries.
void find_new_rows(const Tensor& query, const Tensor& key, const Tensor& value, std::int64_t heads,
                   Call& call) {
  const std::int64_t query_width = heads * call.head_size;
  const std::int64_t kv_width = call.kv_heads * call.head_size;
  const bool packed = !key && !value;
  call.query = query.as<float>();
  call.query_stride = packed ? query_width + 2 * kv_width : query_width;
  require(query.dims[2] == call.query_stride,
          packed ? "without key and value, query must have (num_heads + 2 * kv_num_heads) * "
                   "head size columns"
                 : "query must have num_heads * head size columns");
  if (packed) {
    call.key = call.query + query_width;
    call.value = call.key + kv_width;
    call.key_stride = call.value_stride = call.query_stride;
    return;
  }
  require(key && value && same_shape(key, value) && key.rank == 3 && key.dims[0] == call.batch &&
              key.dims[1] == call.tokens && key.dims[2] == kv_width,
          "key and value must be [batch, tokens, kv_num_heads * head size], both or neither");
  call.key = key.as<float>();
  call.value = value.as<float>();
  call.key_stride = call.value_stride = kv_width;
}

// Returns the rotation by ``inv_freq``, an initialiser [R/2]; none if it is absent.
Rotation rotation_of(const Tensor& inv_freq, float scale) {
  Rotation rotation;
  if (!inv_freq) return rotation;
  require(inv_freq.rank == 1 && inv_freq.dims[0] > 0, "inv_freq must be [R/2]");
  rotation.rates = inv_freq.as<float>();
  rotation.pairs = inv_freq.dims[0];
  rotation.scale = scale;
  for (std::int64_t i = 0; i < rotation.pairs; ++i) {
    const float rate = rotation.rates[i];
    if (rate >= 0.0F && rate <= kLargestRate) continue;
    throw OperatorError("inv_freq[" + std::to_string(i) + "] is " + std::to_string(rate) +
                        "; rates are 0 to " + std::to_string(kLargestRate) +
                        " radians per position");
  }
  return rotation;
}

bool is_norm(const Tensor& weight, std::int64_t head_size) {
  return !weight || (weight.rank == 1 && weight.dims[0] == head_size);
}

// Writes the cosines and sines of the call's tokens to memory of this thread, which is valid until
// its next call.
const float* directions_of(const CallContext& context, const Call& call) {
  constexpr std::int64_t kPairs = 2048;  // per task, about 20 µs
  thread_local Scratch scratch;
  const std::int64_t tokens = call.batch * call.tokens;
  const auto floats = static_cast<std::size_t>(tokens * 2 * call.rotation.pairs);
  auto* table = static_cast<float*>(scratch.reserve(floats * sizeof(float)));
  const std::int64_t step = std::max<std::int64_t>(1, kPairs / call.rotation.pairs);
  context.parallel_for(tokens, step, [&](std::int64_t begin, std::int64_t end) noexcept {
    write_rotation(call.rotation, call.write_indices, call.tokens, begin, end, table);
  });
  return table;
}

// Returns memory of the calling thread, valid until its next call, or nullptr if there is none.
float* scratch_of_thread(std::size_t bytes) noexcept {
  thread_local Scratch scratch;
  try {
    return static_cast<float*>(scratch.reserve(bytes));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void check_in_place(const CallContext& context, std::size_t output, const Tensor& past) {
  const Tensor present = context.output(output, past.dims, past.rank);
  require(present.data == past.data,
          "present_key and present_value must be bound to the memory of past_key and past_value: "
          "the cache is appended to in place");
}

}  // namespace

AttentionOperator::AttentionOperator(const NodeInfo& node)
    : heads_(node.attribute("num_heads", std::int64_t{0})),
      kv_heads_(node.attribute("kv_num_heads", std::int64_t{0})),
      scale_(node.attribute("scale", 0.0F)),
      rotation_(rotation_of(node.constant(kInvFreq), node.attribute("rotary_scale", 1.0F))),
      query_norm_(node.constant(kQueryNorm)),
      key_norm_(node.constant(kKeyNorm)),
      norm_epsilon_(node.attribute("norm_epsilon", 0.0F)),
      instruction_set_(chosen_instruction_set()) {
  require(heads_ > 0 && kv_heads_ > 0 && heads_ % kv_heads_ == 0,
          "num_heads and kv_num_heads must be positive, the first a multiple of the second");
  require(norm_epsilon_ >= 0.0F, "norm_epsilon must be 0 or more");
}

Call AttentionOperator::checked_call(const CallContext& context) const {
  const Tensor query = context.input(0);
  const Tensor past_key = context.input(3), past_value = context.input(4);
  const Tensor write_indices = context.input(5);
  require(query.rank == 3, "query must be [batch, tokens, columns]");
  Call call;
  call.batch = query.dims[0];
  call.tokens = query.dims[1];
  call.kv_heads = kv_heads_;
  call.group = heads_ / kv_heads_;
  check_cache(past_key, past_value, call.batch, kv_heads_);
  call.capacity = past_key.dims[2];
  call.head_size = past_key.dims[3] - scale_width(past_key.type);
  require(call.head_size > 0 && call.head_size % 8 == 0,
          "the head size, past_key's last dimension (less 4 for int8), must be a multiple of 8");
  // This form avoids a product that could overflow.
  require(heads_ <= query.dims[2] / call.head_size,
          "num_heads * head size is above query's columns");
  call.scale = scale_ != 0 ? scale_ : 1.0F / std::sqrt(static_cast<float>(call.head_size));
  find_new_rows(query, context.input(1), context.input(2), heads_, call);
  require(write_indices.rank == 1 && write_indices.dims[0] == call.batch,
          "write_indices must be [batch]");
  call.write_indices = write_indices.as<std::int64_t>();
  if (call.tokens > 0) check_positions(call);
  add_head_changes(context, call);
  call.key_cache = past_key.data;
  call.value_cache = past_value.data;
  check_in_place(context, 1, past_key);
  check_in_place(context, 2, past_value);
  call.y = context.output(0, {call.batch, call.tokens, heads_ * call.head_size}, 3).as<float>();
  return call;
}

void AttentionOperator::add_head_changes(const CallContext& context, Call& call) const {
  require(rotation_.pairs > 0 || !context.input(kInvFreq), "inv_freq must be an initialiser");
  require((query_norm_ || !context.input(kQueryNorm)) && (key_norm_ || !context.input(kKeyNorm)),
          "query_norm and key_norm must be initialisers");
  require(is_norm(query_norm_, call.head_size) && is_norm(key_norm_, call.head_size),
          "query_norm and key_norm must be [head size]");
  require(2 * rotation_.pairs <= call.head_size,
          "inv_freq must have at most half as many rates as a head has elements");
  call.query_norm = query_norm_.as<float>();
  call.key_norm = key_norm_.as<float>();
  call.norm_epsilon = norm_epsilon_;
  call.rotation = rotation_;
}

void AttentionOperator::compute(const CallContext& context) const {
  const CacheType type = cache_type_of(context.input(3).type);
  Call call = checked_call(context);
  if (call.batch * call.tokens == 0) return;
  if (call.rotation.pairs > 0) call.directions = directions_of(context, call);
  run(context, call, attention::kernels_for(instruction_set_, type));
}

// If one span covers the queries of a head, its task also appends the new tokens; otherwise they
// are appended to all heads before any span starts. Short caches are read by one thread.
void AttentionOperator::run(const CallContext& context, const Call& call,
                            const attention::Kernels& kernels) {
  constexpr std::int64_t kElementCost = 4;  // cost of a cache element, in elements of int8 weights
  const std::int64_t queries = call.tokens * call.group;
  const std::int64_t limit = std::min(attention::span_limit(call), queries);
  const std::int64_t spans = (queries + limit - 1) / limit;
  const std::int64_t heads = call.batch * call.kv_heads;
  const std::size_t scratch_bytes = attention::scratch_floats(call, limit) * sizeof(float);
  std::atomic<bool> exhausted{false};
  const auto append = [&](std::int64_t head) noexcept {
    float* memory = scratch_of_thread(scratch_bytes);
    if (memory == nullptr) {
      exhausted = true;
      return;
    }
    kernels.append(call, head / call.kv_heads, head % call.kv_heads, memory);
  };
  const auto attend = [&](std::int64_t task) noexcept {
    const std::int64_t head = task / spans, first = task % spans * limit;
    if (spans == 1) append(head);
    const attention::Span span{head / call.kv_heads, head % call.kv_heads, first,
                               std::min(first + limit, queries)};
    float* memory = scratch_of_thread(scratch_bytes);
    if (memory == nullptr) {
      exhausted = true;
      return;
    }
    kernels.attend(call, span, memory);
  };
  if (spans > 1) context.parallel_for(heads, append);
  const std::int64_t cached = 2 * heads * attention::longest(call) * call.head_size;
  const std::int64_t step = is_small(kElementCost * cached, queries) ? heads * spans : 1;
  context.parallel_for(heads * spans, step, [&](std::int64_t begin, std::int64_t end) noexcept {
    for (std::int64_t task = begin; task < end; ++task) attend(task);
  });
  require(!exhausted, "there is no memory for the scores");
}

}  // namespace skipdec
