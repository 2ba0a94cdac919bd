// Decodes one sequence token by token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tokenizer/text/utf8.h"
#include "tokenizer/tokenizer.h"

namespace skipdec::runtime {

// The results of `push` and the final `flush`, joined, equal `Tokenizer::decode` of all tokens.
// `push` returns only complete characters: "é" as bytes C3, A9 in two tokens gives "", then "é". A
// run of byte-fallback tokens, which is decoded as a whole, is returned with the token after it.
class IncrementalDecoder {
 public:
  // `tokenizer` must outlive this.
  explicit IncrementalDecoder(const Tokenizer& tokenizer, bool skip_special_tokens = true);

  // Adds the next token and returns the text that is now certain; may be "".
  std::string push(std::int64_t token_id) {
    std::string text;
    push(token_id, text);
    return text;
  }
  // The same, but appends the text.
  void push(std::int64_t token_id, std::string& text);

  // Ends the sequence and returns the remaining text: U+FFFD for an incomplete character.
  std::string flush() {
    std::string text;
    flush(text);
    return text;
  }
  void flush(std::string& text);

  // Returns the number of complete characters of the tokens so far that `push` held back.
  std::size_t num_held() const {
    return num_characters(std::string_view(run_).substr(0, valid_utf8_length(run_)));
  }

 private:
  void end_run(std::string& text);
  void strip(std::size_t start, std::string& text);

  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  Utf8Repair repair_;            // for byte-level tokens
  std::string run_;              // bytes of byte-fallback tokens
  std::size_t may_be_stripped_;  // characters at the start of the text
};

}  // namespace skipdec::runtime
