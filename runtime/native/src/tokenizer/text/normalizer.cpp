#include "tokenizer/text/normalizer.h"

#include <cstddef>
#include <string>
#include <string_view>
#include <variant>

#include "tokenizer/text/composition.h"

namespace skipdec::runtime {
namespace {

// U+1FBE, U+0308 and U+0301, of seven bytes, compose U+0390, of two; no ratio is larger.
constexpr std::size_t kMostComposed = 4;

std::string applied(const Composition& /*step*/, std::string_view text) { return composed(text); }

std::string applied(const Prefix& step, std::string_view text) {
  return text.empty() ? std::string() : step.prefix + std::string(text);
}

std::string applied(const Replacement& step, std::string_view text) { return step.applied(text); }

std::size_t shrinkage(const Composition& /*step*/) { return kMostComposed; }
std::size_t shrinkage(const Prefix& /*step*/) { return 1; }
std::size_t shrinkage(const Replacement& step) {
  return step.content.size() >= step.pattern.size() ? 1 : 0;
}

}  // namespace

std::string Replacement::applied(std::string_view text) const {
  std::string result;
  result.reserve(text.size());
  for (std::size_t start = 0;;) {
    const std::size_t found = text.find(pattern, start);
    result += text.substr(start, found - start);
    if (found == std::string_view::npos) return result;
    result += content;
    start = found + pattern.size();
  }
}

std::string Normalizer::normalized(std::string_view text) const {
  std::string result(text);
  for (const NormalizerStep& step : steps_)
    result = std::visit([&result](const auto& known) { return applied(known, result); }, step);
  return result;
}

std::size_t Normalizer::most_shrinkage() const {
  std::size_t most = 1;
  for (const NormalizerStep& step : steps_)
    most *= std::visit([](const auto& known) { return shrinkage(known); }, step);
  return most;
}

}  // namespace skipdec::runtime
