// Prints a digest of each family's results, which is the same on every processor. Exits with 1 if
// an instruction set of this processor differs from plain loops or from another instruction set, or
// if threads do not run each task once.
#include <cinttypes>
#include <cmath>
#include <cstdio>

#include "families.h"

namespace skipdec::tests {
namespace {

constexpr InstructionSet kSets[] = {InstructionSet::kPortable,   InstructionSet::kNeon,
                                    InstructionSet::kAvx2,       InstructionSet::kAvxVnni,
                                    InstructionSet::kAvx512Vnni, InstructionSet::kAmx};

bool run(const char* name, Outcome (*family)(InstructionSet)) {
  const Outcome portable = family(InstructionSet::kPortable);
  bool is_right = true;
  for (InstructionSet set : kSets) {
    if (!is_available(set)) continue;
    const Outcome outcome = family(set);
    const bool is_same = outcome.digest() == portable.digest();
    std::fprintf(stderr, "%s on %s: %s%s\n", name, name_of(set),
                 outcome.is_right() ? "right" : "WRONG", is_same ? "" : ", NOT THE SAME BITS");
    is_right = is_right && is_same && outcome.is_right();
  }
  std::printf("%s %016" PRIx64 "\n", name, portable.digest());
  return is_right;
}

}  // namespace

void Outcome::add(const std::vector<float>& results, const std::vector<float>& expected,
                  float tolerance, float relative) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const float difference = std::fabs(results[i] - expected[i]);
    if (is_right_ && !(difference <= tolerance + relative * std::fabs(expected[i]))) {
      is_right_ = false;
      std::fprintf(stderr, "element %zu of %zu is %.9g, not %.9g\n", i, expected.size(),
                   static_cast<double>(results[i]), static_cast<double>(expected[i]));
    }
    std::uint32_t word = 0;
    std::memcpy(&word, &results[i], sizeof word);
    digest_ = (digest_ ^ word) * 1099511628211U;
  }
}

std::vector<float> gated(const std::vector<float>& products, std::int64_t columns) {
  const auto half = static_cast<std::size_t>(columns / 2);
  std::vector<float> results(products.size() / 2);
  for (std::size_t i = 0; i < results.size(); ++i) {
    const float* gate = products.data() + i / half * 2 * half + i % half;
    const double exact = *gate / (1 + std::exp(-static_cast<double>(*gate)));
    results[i] = static_cast<float>(exact * gate[half]);
  }
  return results;
}

}  // namespace skipdec::tests

int main() {
  using namespace skipdec::tests;
  bool is_right = run("integer_products", integer_products);
  is_right = run("block_products", block_products) && is_right;
  is_right = run("float_products", float_products) && is_right;
  is_right = run("attention", attention) && is_right;
  is_right = run("normalization", normalization) && is_right;
  is_right = run("drawing", drawing) && is_right;
  is_right = team() && is_right;
  return is_right ? 0 : 1;
}
