// Decodes one sequence token by token.
#pragma once

#include <cstdint>
#include <string>

#include "tokenizer/text/utf8.h"
#include "tokenizer/tokenizer.h"

namespace skipdec::runtime {

// The results of `push` and the final `flush`, joined, equal `Tokenizer::decode` of all tokens.
// `push` returns complete characters only: "é" as bytes C3, A9 in two tokens gives "", then "é".
class IncrementalDecoder {
 public:
  // `tokenizer` must outlive this.
  explicit IncrementalDecoder(const Tokenizer& tokenizer, bool skip_special_tokens = true)
      : tokenizer_(&tokenizer), skip_special_tokens_(skip_special_tokens) {}

  // Adds the next token and returns the text that is now certain; may be "".
  std::string push(std::int64_t token_id) {
    std::string text;
    if (!(skip_special_tokens_ && tokenizer_->is_special(token_id)))
      repair_.push(tokenizer_->token_bytes(token_id), text);
    return text;
  }

  // Ends the sequence and returns the remaining text: U+FFFD for an incomplete character.
  std::string flush() {
    std::string text;
    repair_.flush(text);
    return text;
  }

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  Utf8Repair repair_;
};

}  // namespace skipdec::runtime
