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

// Finds the keys and values of new tokens: in inputs of their own, or packed after the queries.
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
      instruction_set_(chosen_instruction_set()) {
  require(heads_ > 0 && kv_heads_ > 0 && heads_ % kv_heads_ == 0,
          "num_heads and kv_num_heads must be positive, the first a multiple of the second");
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
  call.scale = scale_ != 0 ? scale_ : 1.0F / std::sqrt(static_cast<float>(call.head_size));
  find_new_rows(query, context.input(1), context.input(2), heads_, call);
  require(write_indices.rank == 1 && write_indices.dims[0] == call.batch,
          "write_indices must be [batch]");
  call.write_indices = write_indices.as<std::int64_t>();
  if (call.tokens > 0) check_positions(call);
  call.key_cache = past_key.data;
  call.value_cache = past_value.data;
  check_in_place(context, 1, past_key);
  check_in_place(context, 2, past_value);
  call.y = context.output(0, {call.batch, call.tokens, heads_ * call.head_size}, 3).as<float>();
  return call;
}

void AttentionOperator::compute(const CallContext& context) const {
  const CacheType type = cache_type_of(context.input(3).type);
  const Call call = checked_call(context);
  if (call.batch * call.tokens == 0) return;
  run(context, call, attention::kernels_for(instruction_set_, type));
}

// If one span covers the queries of a head, its task also appends the new tokens; otherwise they
// are appended to all heads before any span starts.
void AttentionOperator::run(const CallContext& context, const Call& call,
                            const attention::Kernels& kernels) {
  const std::int64_t queries = call.tokens * call.group;
  const std::int64_t limit = std::min(attention::span_limit(call), queries);
  const std::int64_t spans = (queries + limit - 1) / limit;
  const std::int64_t heads = call.batch * call.kv_heads;
  const std::size_t scratch_bytes = attention::scratch_floats(call, limit) * sizeof(float);
  std::atomic<bool> exhausted{false};
  const auto attend = [&](std::int64_t task) noexcept {
    thread_local Scratch scratch;
    const std::int64_t head = task / spans, first = task % spans * limit;
    const attention::Span span{head / call.kv_heads, head % call.kv_heads, first,
                               std::min(first + limit, queries)};
    try {
      auto* memory = static_cast<float*>(scratch.reserve(scratch_bytes));
      if (spans == 1) kernels.append(call, span.sequence, span.kv_head);
      kernels.attend(call, span, memory);
    } catch (const std::bad_alloc&) {
      exhausted = true;
    }
  };
  if (spans > 1) {
    context.parallel_for(heads, [&](std::int64_t head) noexcept {
      kernels.append(call, head / call.kv_heads, head % call.kv_heads);
    });
  }
  context.parallel_for(heads * spans, attend);
  require(!exhausted, "there is no memory for the scores");
}

}  // namespace skipdec
