// The normalizer of a tokenizer.json, which changes text before it is divided into pieces.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace skipdec::runtime {

// Replaces each occurrence of `pattern`, which is not empty, from the left.
struct Replacement {
  std::string pattern, content;

  std::string applied(std::string_view text) const;
};

// Puts `prefix` before a text that is not empty.
struct Prefix {
  std::string prefix;
};

// NFC, canonical composition.
struct Composition {};

using NormalizerStep = std::variant<Composition, Prefix, Replacement>;

class Normalizer {
 public:
  Normalizer() = default;
  explicit Normalizer(std::vector<NormalizerStep> steps) : steps_(std::move(steps)) {}

  const std::vector<NormalizerStep>& steps() const { return steps_; }

  // Applies all steps, in their order, to `text`, valid UTF-8.
  std::string normalized(std::string_view text) const;

  // Returns how many times as many bytes a text may have as its normalized form; 0 if unbounded.
  std::size_t most_shrinkage() const;

 private:
  std::vector<NormalizerStep> steps_;
};

}  // namespace skipdec::runtime
