// Samples tokens on the instruction set that the including file names.
#include "processor/standard_floats.h"
#include "sampling/draw.h"
// clang-format off: order matters
#include "simd/begin.inc.h"
#include "simd/functions.inc.h"
#include "sampling/exponentials.inc.h"
// clang-format on

namespace skipdec {
namespace {

// Number of logits per block. A block's maximum shows whether any of its logits is kept.
constexpr std::int64_t kBlock = 64;

// Right shift of a float32's bits that leaves its sign, its exponent and five bits of its mantissa.
constexpr int kClassShift = 18;

// Writes each block's largest logit to ``maxima`` and returns the largest of all; NaN if a logit is
// NaN or +infinity.
float find_maxima(const float* logits, std::int64_t size, std::vector<float>& maxima) {
  maxima.resize(static_cast<std::size_t>((size + kBlock - 1) / kBlock));
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Vector none = Vector::broadcast(-kInfinity), infinity = Vector::broadcast(kInfinity);
  const Vector zero = Vector::broadcast(0.0F), one = Vector::broadcast(1.0F);
  Vector invalid = zero;
  float best = -kInfinity;
  for (std::size_t b = 0; b < maxima.size(); ++b) {
    const std::int64_t start = static_cast<std::int64_t>(b) * kBlock;
    const std::int64_t stop = std::min(start + kBlock, size);
    Vector largest = none;
    std::int64_t i = start;
    for (; i + Vector::kLanes <= stop; i += Vector::kLanes) {
      const Vector block = Vector::load(logits + i);
      largest = max(largest, block);
      invalid = max(invalid, select_less(block, infinity, zero, one));
    }
    float rest = maximum(largest);
    for (; i < stop; ++i) {
      if (!(logits[i] < kInfinity)) return std::numeric_limits<float>::quiet_NaN();
      rest = std::max(rest, logits[i]);
    }
    maxima[b] = rest;
    best = std::max(best, rest);
  }
  return maximum(invalid) > 0 ? std::numeric_limits<float>::quiet_NaN() : best;
}

// Returns the first place of the largest logit, ``best``.
std::int64_t place_of_best(float best, const float* logits, std::int64_t size,
                           const DrawScratch& scratch) {
  const auto& maxima = scratch.block_maxima;
  const std::int64_t block = std::find(maxima.begin(), maxima.end(), best) - maxima.begin();
  return std::find(logits + block * kBlock, logits + size, best) - logits;
}

// Returns the k-th largest of ``values`` and reorders them.
float kth_largest(std::vector<float>& values, std::int64_t k) {
  const auto place = values.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(values.begin(), place, values.end(), std::greater<>());
  return *place;
}

// Writes the logits >= ``least`` to scratch.kept and their ids, in order, to scratch.ids.
void keep_from(float least, const float* logits, std::int64_t size, DrawScratch& scratch) {
  scratch.ids.clear();
  scratch.kept.clear();
  for (std::size_t b = 0; b < scratch.block_maxima.size(); ++b) {
    if (scratch.block_maxima[b] < least) continue;
    const std::int64_t start = static_cast<std::int64_t>(b) * kBlock;
    for (std::int64_t i = start; i < std::min(start + kBlock, size); ++i) {
      if (logits[i] < least) continue;
      scratch.ids.push_back(i);
      scratch.kept.push_back(logits[i]);
    }
  }
}

// Returns the bound at and above which top_k keeps logits, at least ``least``. At least k logits
// reach the k-th largest of the blocks' maxima, so few others are examined.
float top_k_threshold(std::int64_t k, float least, const float* logits, std::int64_t size,
                      DrawScratch& scratch) {
  if (k < static_cast<std::int64_t>(scratch.block_maxima.size())) {
    scratch.largest.assign(scratch.block_maxima.begin(), scratch.block_maxima.end());
    least = std::max(least, kth_largest(scratch.largest, k));
  }
  keep_from(least, logits, size, scratch);
  if (static_cast<std::int64_t>(scratch.kept.size()) <= k) return least;
  scratch.largest.assign(scratch.kept.begin(), scratch.kept.end());
  return std::max(least, kth_largest(scratch.largest, k));
}

// Returns the sum of float32 values, added as eight independent sums.
double sum_of(const float* values, std::int64_t size) {
  const float* const end = values + size;
  double partial[8] = {};
  for (; end - values >= 8; values += 8) {
    for (int lane = 0; lane < 8; ++lane) partial[lane] += static_cast<double>(values[lane]);
  }
  double total = 0;
  for (; values != end; ++values) total += static_cast<double>(*values);
  for (double one : partial) total += one;
  return total;
}

// Writes e^((value − best) · inverse_temperature) of each value to ``weights``.
void weigh(const Draw& draw, float best, const float* values, std::int64_t size, float* weights) {
  const Vector most = Vector::broadcast(best);
  const Vector inverse = Vector::broadcast(draw.inverse_temperature);
  for (std::int64_t i = 0; i < size; i += Vector::kLanes) {
    const int lanes = lanes_of(size - i);
    store_up_to(exp((load_up_to(values + i, lanes) - most) * inverse), weights + i, lanes);
  }
}

// Implements SumWeights.
double sum_weights(const float* logits, std::int64_t size, float best) {
  const StandardFloats standard;
  float weights[kBlock];
  double total = 0;
  for (std::int64_t start = 0; start < size; start += kBlock) {
    const std::int64_t count = std::min(kBlock, size - start);
    weigh(Draw{}, best, logits + start, count, weights);
    total += sum_of(weights, count);
  }
  return total;
}

// Weights that top_p keeps: those above ``border``, and the first ``ties`` of the ``equal`` weights
// of that value.
struct Nucleus {
  float border = 0;
  std::int64_t ties = 0, equal = 0;
};

// Finds the fewest largest of ``values`` whose sum plus ``above``, the sum of all larger weights,
// reaches ``target``; all of them if the sum never reaches it. Reorders ``values``.
Nucleus find_border(std::vector<float>& values, double above, double target) {
  auto begin = values.begin(), end = values.end();
  Nucleus nucleus;
  while (begin != end) {
    const float middle = *(begin + (end - begin) / 2), first = *begin, last = *(end - 1);
    const float pivot = std::max(std::min(first, middle), std::min(std::max(first, middle), last));
    const auto equal = std::partition(begin, end, [pivot](float value) { return value > pivot; });
    const auto below = std::partition(equal, end, [pivot](float value) { return value == pivot; });
    const double larger = above + sum_of(values.data() + (begin - values.begin()), equal - begin);
    if (begin != equal && larger >= target) {
      end = equal;
      continue;
    }
    const auto weight = static_cast<double>(pivot);
    const auto num_equal = static_cast<double>(below - equal);
    const double ties = std::min(std::max(std::ceil((target - larger) / weight), 1.0), num_equal);
    nucleus = {pivot, static_cast<std::int64_t>(ties), below - equal};
    above = larger + ties * weight;
    if (above >= target) break;
    begin = below;
  }
  return nucleus;
}

// Calls ``visit`` with all weights of each chunk that contains a weight >= ``least``.
template <class Visit>
void visit_weights(float least, const DrawScratch& scratch, const Visit& visit) {
  const auto size = static_cast<std::int64_t>(scratch.weights.size());
  for (std::int64_t start = 0; start < size; start += kBlock) {
    if (scratch.block_weights[static_cast<std::size_t>(start / kBlock)] < least) continue;
    const float* weight = scratch.weights.data() + start;
    const float* const end = weight + std::min(kBlock, size - start);
    for (; end - weight >= Vector::kLanes; weight += Vector::kLanes) {
      if (maximum(Vector::load(weight)) < least) continue;
      for (int lane = 0; lane < Vector::kLanes; ++lane) visit(weight[lane]);
    }
    for (; weight != end; ++weight) visit(*weight);
  }
}

// Returns the class of a weight: its sign, exponent and first five bits of the mantissa.
std::size_t class_of(float weight) {
  std::uint32_t bits;
  std::memcpy(&bits, &weight, sizeof bits);
  return bits >> kClassShift;
}

// First sums weights by class, then examines only those of the class that contains the border.
// Skips weights that the nucleus cannot need, which are so small that even if all weights were,
// their sum would stay below 1 - top_p of the total.
Nucleus find_nucleus(double top_p, double total, DrawScratch& scratch) {
  const double spare = (1 - top_p) * total / static_cast<double>(scratch.weights.size());
  scratch.class_sums.assign(class_of(1.0F) + 1, 0.0);
  double* const sums = scratch.class_sums.data();
  const auto needed = static_cast<float>(spare * (1 - 1e-6));
  visit_weights(needed, scratch,
                [sums](float weight) { sums[class_of(weight)] += static_cast<double>(weight); });
  const double target = top_p * total;
  std::size_t border = scratch.class_sums.size();
  double above = 0, with_class = 0;
  while (border > 0 && with_class < target) {
    above = with_class;
    with_class += sums[--border];
  }
  scratch.largest.clear();
  float least;
  const auto bits = static_cast<std::uint32_t>(border << kClassShift);
  std::memcpy(&least, &bits, sizeof least);
  visit_weights(least * (1 - 1e-6F), scratch, [&scratch, border](float weight) {
    if (class_of(weight) == border && weight > 0) scratch.largest.push_back(weight);
  });
  return find_border(scratch.largest, above, target);
}

// Writes the token ids of weights from ``start`` on.
void write_token_ids(const Draw& draw, const DrawScratch& scratch, std::int64_t start,
                     std::int64_t count, std::uint32_t (&token_ids)[kBlock]) {
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t index = start + i;
    if (!scratch.ids.empty()) index = scratch.ids[static_cast<std::size_t>(index)];
    if (draw.token_ids != nullptr) index = draw.token_ids[index];
    token_ids[i] = static_cast<std::uint32_t>(index);
  }
}

// Returns whether a weight exceeds ``least`` times its token's share.
bool exceeds_share(const float (&weights)[kBlock], const float (&shares)[kBlock], float least) {
  const Vector factor = Vector::broadcast(least);
  Vector most = Vector::broadcast(0.0F);
  for (std::int64_t i = 0; i < kBlock; i += Vector::kLanes) {
    most = max(most, Vector::load(weights + i) - factor * Vector::load(shares + i));
  }
  return maximum(most) > 0;
}

// Returns the place of the largest weight per exponential number, among ``size`` weights of which
// write_weights(start, count, weights) writes a block's. A token's number is not below its share,
// so most blocks can't contain it: then only their shares, or not even these, are computed.
template <class WriteWeights>
std::int64_t place_of_winner(const Draw& draw, const DrawScratch& scratch, std::int64_t size,
                             const WriteWeights& write_weights) {
  const HashKeys keys = hash_keys(draw.uniform);
  float largest = 0;
  std::int64_t winner = 0;
  for (std::int64_t start = 0; start < size; start += kBlock) {
    const float most = scratch.block_weights[static_cast<std::size_t>(start / kBlock)];
    const float least = largest * (1 - 1e-5F);
    if (most <= least * kLeastShare) continue;
    const std::int64_t count = std::min(kBlock, size - start);
    std::uint32_t token_ids[kBlock] = {};
    float weights[kBlock], numbers[kBlock];
    write_token_ids(draw, scratch, start, count, token_ids);
    shares_of(token_ids, keys, numbers);
    std::fill(std::begin(weights), std::end(weights), most);
    if (!exceeds_share(weights, numbers, least)) continue;
    std::fill(weights + count, std::end(weights), 0.0F);
    write_weights(start, count, weights);
    if (!exceeds_share(weights, numbers, least)) continue;
    make_exponential(numbers);
    Vector best = Vector::broadcast(0.0F);
    for (std::int64_t i = 0; i < kBlock; i += Vector::kLanes) {
      const Vector quotients = Vector::load(weights + i) / Vector::load(numbers + i);
      quotients.store(numbers + i);
      best = max(best, quotients);
    }
    if (maximum(best) <= largest) continue;
    largest = maximum(best);
    winner = start + (std::find(numbers, numbers + count, largest) - numbers);
  }
  return winner;
}

// Draws among the weights of the nucleus of ``size`` logits.
std::int64_t place_in_nucleus(const Draw& draw, float best, const float* logits, std::int64_t size,
                              DrawScratch& scratch) {
  scratch.weights.resize(static_cast<std::size_t>(size));
  weigh(draw, best, logits, size, scratch.weights.data());
  const double total = sum_of(scratch.weights.data(), size);
  const Nucleus nucleus = find_nucleus(draw.top_p, total, scratch);
  if (nucleus.ties < nucleus.equal) {
    std::int64_t ties = nucleus.ties;
    for (float& weight : scratch.weights) {
      if (weight == nucleus.border && ties-- <= 0) weight = 0;
    }
  }
  for (float& most : scratch.block_weights) {
    if (most < nucleus.border * (1 - 1e-6F)) most = 0;
  }
  const auto keep = [&](std::int64_t start, std::int64_t count, float* kept) {
    const Vector border = Vector::broadcast(nucleus.border), zero = Vector::broadcast(0.0F);
    for (std::int64_t i = 0; i < count; i += Vector::kLanes) {
      const int lanes = lanes_of(count - i);
      const Vector all = load_up_to(scratch.weights.data() + start + i, lanes);
      store_up_to(select_less(all, border, zero, all), kept + i, lanes);
    }
  };
  return place_of_winner(draw, scratch, size, keep);
}

std::int64_t draw_token(const Draw& draw, const float* logits, std::int64_t size,
                        DrawScratch& scratch) {
  const StandardFloats standard;
  const float best = find_maxima(logits, size, scratch.block_maxima);
  if (!std::isfinite(best)) return -1;
  if (draw.uniform < 0) return place_of_best(best, logits, size, scratch);
  float least = best + draw.margin;
  if (draw.top_k > 0 && draw.top_k < size) {
    least = top_k_threshold(draw.top_k, least, logits, size, scratch);
  }
  const bool keeps_all = least == -std::numeric_limits<float>::infinity();
  scratch.ids.clear();
  if (!keeps_all) {
    keep_from(least, logits, size, scratch);
    logits = scratch.kept.data();
    size = static_cast<std::int64_t>(scratch.kept.size());
  }
  scratch.block_weights.assign(scratch.block_maxima.size(), 1.0F);
  if (keeps_all) {
    const auto blocks = static_cast<std::int64_t>(scratch.block_maxima.size());
    weigh(draw, best, scratch.block_maxima.data(), blocks, scratch.block_weights.data());
  }
  const auto weigh_block = [&](std::int64_t start, std::int64_t count, float* weights) {
    weigh(draw, best, logits + start, count, weights);
  };
  const std::int64_t place = draw.top_p < 1 ? place_in_nucleus(draw, best, logits, size, scratch)
                                            : place_of_winner(draw, scratch, size, weigh_block);
  return keeps_all ? place : scratch.ids[static_cast<std::size_t>(place)];
}

}  // namespace

Drawing SKIPDEC_NAMED(drawing)() { return {draw_token, sum_weights}; }
}  // namespace skipdec

#include "simd/end.inc.h"
