// The pre-tokenizer of a tokenizer.json, which divides text into pieces to encode one by one.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/text/pieces.h"

namespace skipdec::runtime {

// Which pieces get a blank in front, unless they begin with one.
enum class BlankBefore { kNever, kFirst, kAlways };

// All pre-tokenizers of a file as one. A text first passes through `splits`, each of which divides
// the pieces of the one before. Then `blank` replaces each space and may be put in front. Finally,
// `scanner` divides the result.
//
// Metaspace: blank "▁", kAlways, scanner_before("▁"): "a  b" → "▁a▁▁b" → "▁a", "▁", "▁b".
// ByteLevel: blank " ", kAlways or kNever, and GPT-2's scanner or none.
struct PreTokenizer {
  using Use = std::function<void(std::string_view piece)>;

  std::vector<Scanner> splits;
  std::string blank = " ";
  BlankBefore blank_before = BlankBefore::kNever;
  Scanner scanner;          // empty: leaves the text whole
  bool byte_level = false;  // the model encodes characters that stand for bytes

  // Calls ``use`` with each piece of `text`, valid UTF-8, in order. A piece is valid during the
  // call. `is_first`: `text` is the beginning of the text that the caller encodes.
  void divide(std::string_view text, bool is_first, const Use& use) const;

 private:
  void divide_from(std::size_t split, std::string_view text, bool is_first, const Use& use) const;
  void divide_last(std::string_view text, bool is_first, const Use& use) const;
};

}  // namespace skipdec::runtime
