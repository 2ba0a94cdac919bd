#include "tokenizer/text/pre_tokenizer.h"

#include <string>
#include <string_view>

#include "tokenizer/text/normalizer.h"

namespace skipdec::runtime {

void PreTokenizer::divide(std::string_view text, bool is_first, const Use& use) const {
  divide_from(0, text, is_first, use);
}

// NOLINTNEXTLINE(misc-no-recursion): as deep as there are splits, which a reader limits
void PreTokenizer::divide_from(std::size_t split, std::string_view text, bool is_first,
                               const Use& use) const {
  if (split == splits.size()) {
    divide_last(text, is_first, use);
    return;
  }
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = splits[split](text, start);
    divide_from(split + 1, text.substr(start, end - start), is_first && start == 0, use);
    start = end;
  }
}

void PreTokenizer::divide_last(std::string_view text, bool is_first, const Use& use) const {
  std::string changed;
  if (blank != " ") {
    changed = Replacement{" ", blank}.applied(text);
    text = changed;
  }
  const bool may_begin =
      blank_before == BlankBefore::kAlways || (blank_before == BlankBefore::kFirst && is_first);
  if (may_begin && text.substr(0, blank.size()) != blank) {
    changed = blank + std::string(text);
    text = changed;
  }
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = scanner ? scanner(text, start) : text.size();
    use(text.substr(start, end - start));
    start = end;
  }
}

}  // namespace skipdec::runtime
