#include <algorithm>
#include <cmath>

#include "attention/kernels.h"
#include "families.h"
#include "operators/scratch.h"

namespace skipdec::tests {
namespace {

using attention::CacheType;
using attention::Call;
using attention::Span;

// Without pairs, heads are neither rotated nor normalised.
struct Size {
  std::int64_t tokens, head_size, group, pairs;
};

// Two sequences with 3 and 11 tokens in caches of 40, two heads of the cache.
struct Case {
  static constexpr std::int64_t kCapacity = 40, kHeads = 2, kBatch = 2;

  Case(const Size& size, CacheType type, Numbers& numbers) : type(type) {
    call.batch = kBatch;
    call.tokens = size.tokens;
    call.kv_heads = kHeads;
    call.group = size.group;
    call.head_size = size.head_size;
    call.capacity = kCapacity;
    call.scale = 0.03125F;
    call.key_stride = call.value_stride = kHeads * size.head_size;
    call.query_stride = call.key_stride * size.group;
    write_indices = {3, 11};
    call.write_indices = write_indices.data();
    query = numbers.values(kBatch * size.tokens * call.query_stride);
    const std::int64_t width = type == CacheType::kInt8 ? size.head_size + 4 : size.head_size;
    const std::int64_t bytes = type == CacheType::kInt8 ? 1 : type == CacheType::kFloat32 ? 4 : 2;
    key_cache.resize(static_cast<std::size_t>(kBatch * kHeads * kCapacity * width * bytes));
    value_cache = key_cache;
    call.key_cache = key_cache.data();
    call.value_cache = value_cache.data();
    call.query = query.data();
    if (size.pairs > 0) add_head_changes(size, numbers);
  }

  // Rates are multiples of 1/512, so that angles are exact.
  void add_head_changes(const Size& size, Numbers& numbers) {
    for (std::int64_t i = 0; i < size.pairs; ++i) {
      rates.push_back(static_cast<float>(numbers.below(512)) / 512.0F);
    }
    norms = numbers.values(2 * size.head_size);
    call.rotation = {rates.data(), size.pairs, 0.5F};
    call.query_norm = norms.data();
    call.key_norm = norms.data() + size.head_size;
    call.norm_epsilon = 0.25F;
  }

  CacheType type;
  Call call;
  std::vector<std::int64_t> write_indices;
  std::vector<float> query, rates, norms;
  std::vector<std::uint8_t> key_cache, value_cache;
};

std::vector<float> directions(const Call& call) {
  std::vector<float> table(
      static_cast<std::size_t>(call.batch * call.tokens * 2 * call.rotation.pairs));
  write_rotation(call.rotation, call.write_indices, call.tokens, 0, call.batch * call.tokens,
                 table.data());
  return table;
}

// Keys and values of all tokens, [B, 14 or more, M·D]; past tokens are appended first.
struct Tokens {
  Tokens(const Case& c, Numbers& numbers)
      : length(11 + c.call.tokens),
        keys(numbers.values(2 * length * c.call.key_stride)),
        values(numbers.values(2 * length * c.call.key_stride)) {}

  std::int64_t length;
  std::vector<float> keys, values;
};

// Appends tokens first … last - 1 of sequence b.
void append(const Case& c, const attention::Kernels& kernels, const Tokens& tokens, std::int64_t b,
            std::int64_t first, std::int64_t last) {
  std::vector<std::int64_t> indices(c.write_indices);
  indices[static_cast<std::size_t>(b)] = first;
  Call call = c.call;
  call.write_indices = indices.data();
  call.tokens = last - first;
  // kernels expect token s of sequence b at (b·S + s)·stride
  const std::int64_t start = (b * tokens.length + first - b * call.tokens) * call.key_stride;
  call.key = tokens.keys.data() + start;
  call.value = tokens.values.data() + start;
  const std::vector<float> table = directions(call);
  if (call.rotation.pairs > 0) call.directions = table.data();
  Scratch scratch;
  auto* memory =
      static_cast<float*>(scratch.reserve(attention::scratch_floats(call, 1) * sizeof(float)));
  for (std::int64_t head = 0; head < call.kv_heads; ++head) kernels.append(call, b, head, memory);
}

std::vector<float> computed(Case& c, const attention::Kernels& kernels, const Tokens& tokens) {
  std::vector<float> results(c.query.size());
  Call& call = c.call;
  call.y = results.data();
  for (std::int64_t b = 0; b < call.batch; ++b) {
    append(c, kernels, tokens, b, 0, c.write_indices[static_cast<std::size_t>(b)] + call.tokens);
  }
  const std::vector<float> table = directions(call);
  if (call.rotation.pairs > 0) call.directions = table.data();
  in_two_threads(call.batch * call.kv_heads, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t queries = call.tokens * call.group;
    Scratch scratch;
    auto* memory = static_cast<float*>(
        scratch.reserve(attention::scratch_floats(call, queries) * sizeof(float)));
    for (std::int64_t head = begin; head < end; ++head) {
      kernels.attend(call, Span{head / call.kv_heads, head % call.kv_heads, 0, queries}, memory);
    }
  });
  return results;
}

// Returns a head at ``position``, normalised and rotated.
std::vector<double> placed(const Call& call, const float* norm, std::int64_t position,
                           const float* head) {
  std::vector<double> y(head, head + call.head_size);
  if (norm == nullptr) return y;
  double squares = 0;
  for (double each : y) squares += each * each;
  const auto size = static_cast<double>(call.head_size);
  const double factor = 1 / std::sqrt(squares / size + static_cast<double>(call.norm_epsilon));
  for (double& each : y) each *= factor * static_cast<double>(*norm++);
  for (std::int64_t i = 0; i < call.rotation.pairs; ++i) {
    double& first = y[static_cast<std::size_t>(i)];
    double& second = y[static_cast<std::size_t>(i + call.rotation.pairs)];
    const double angle =
        static_cast<double>(position) * static_cast<double>(call.rotation.rates[i]);
    const double cosine = std::cos(angle) * static_cast<double>(call.rotation.scale);
    const double sine = std::sin(angle) * static_cast<double>(call.rotation.scale);
    const double x = first;
    first = x * cosine - second * sine;
    second = second * cosine + x * sine;
  }
  return y;
}

// Attends with query head h of token s of sequence b, and writes the result to ``to``.
void attend(const Case& c, const Tokens& tokens, std::int64_t b, std::int64_t s, std::int64_t h,
            float* to) {
  const Call& call = c.call;
  const std::int64_t length = c.write_indices[static_cast<std::size_t>(b)] + s + 1;
  const std::int64_t column = h / call.group * call.head_size;
  const float* raw = call.query + (b * call.tokens + s) * call.query_stride + h * call.head_size;
  const std::vector<double> query = placed(call, call.query_norm, length - 1, raw);
  std::vector<double> scores(static_cast<std::size_t>(length));
  double largest = -INFINITY, total = 0;
  const auto row = [&](const std::vector<float>& from, std::int64_t t) {
    return from.data() + (b * tokens.length + t) * call.key_stride + column;
  };
  for (std::int64_t t = 0; t < length; ++t) {
    double& score = scores[static_cast<std::size_t>(t)];
    const std::vector<double> key = placed(call, call.key_norm, t, row(tokens.keys, t));
    for (std::size_t d = 0; d < key.size(); ++d) score += query[d] * key[d];
    score *= static_cast<double>(call.scale);
    largest = std::max(largest, score);
  }
  for (double& score : scores) total += score = std::exp(score - largest);
  for (std::int64_t d = 0; d < call.head_size; ++d) {
    double sum = 0;
    for (std::int64_t t = 0; t < length; ++t) {
      sum += scores[static_cast<std::size_t>(t)] / total * row(tokens.values, t)[d];
    }
    to[d] = static_cast<float>(sum);
  }
}

std::vector<float> expected(const Case& c, const Tokens& tokens) {
  std::vector<float> results(c.query.size());
  const Call& call = c.call;
  for (std::int64_t b = 0; b < call.batch; ++b) {
    for (std::int64_t s = 0; s < call.tokens; ++s) {
      for (std::int64_t h = 0; h < call.kv_heads * call.group; ++h) {
        const std::int64_t at = (b * call.tokens + s) * call.query_stride + h * call.head_size;
        attend(c, tokens, b, s, h, results.data() + at);
      }
    }
  }
  return results;
}

// Tolerance for a rounded cache. Numbers have 11 bits, which float16 represents exactly; rotated
// keys have more.
float tolerance(CacheType type, const Size& size) {
  switch (type) {
    case CacheType::kFloat32:
      return 1e-4F;
    case CacheType::kFloat16:
      return size.pairs > 0 ? 0.02F : 1e-4F;
    case CacheType::kBfloat16:
    case CacheType::kInt8:
      return 0.1F;
  }
  return 0;
}

}  // namespace

Outcome attention(InstructionSet set) {
  Outcome outcome;
  Numbers numbers;
  for (const Size& size : {Size{1, 64, 1, 0}, Size{1, 40, 3, 0}, Size{6, 80, 1, 0},
                           Size{29, 128, 2, 0}, Size{1, 64, 2, 32}, Size{7, 24, 3, 9}}) {
    for (CacheType type :
         {CacheType::kFloat32, CacheType::kFloat16, CacheType::kBfloat16, CacheType::kInt8}) {
      Case c(size, type, numbers);
      const Tokens tokens(c, numbers);
      outcome.add(computed(c, attention::kernels_for(set, type), tokens), expected(c, tokens),
                  tolerance(type, size));
    }
  }
  return outcome;
}

}  // namespace skipdec::tests
