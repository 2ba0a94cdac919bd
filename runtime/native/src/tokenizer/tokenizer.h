// Converts between text and token ids by the tokenizer.json of a BPE model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/token_texts.h"

namespace skipdec::runtime {

// Gives the same tokens and texts as the `tokenizers` package. Immutable; any thread may use it.
class Tokenizer {
 public:
  // Reads the content of a tokenizer.json, of at most 64 MiB; ``subject`` names it in errors.
  // `encode_prompt` replaces {prompt}, which ``prompt_template`` has once, by the prompt. Throws
  // UnsupportedTokenizer for kinds that are not implemented, and Error (kBundle) for a malformed
  // file.
  static std::unique_ptr<Tokenizer> parse(std::string_view json, const std::string& subject,
                                          std::optional<std::string> prompt_template);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Returns the token ids of a text. Throws Error about `subject`: kUsage, naming the byte, for
  // text that is not UTF-8, and kCapacity for more than 1 GiB.
  std::vector<std::int64_t> encode(std::string_view text, bool add_special_tokens = true,
                                   const char* subject = "prompt") const;

  // Returns the tokens that the model reads for `prompt`, including those of the template.
  std::vector<std::int64_t> encode_prompt(std::string_view prompt) const;

  // Returns a lower bound on the number of tokens of `text` from its length alone; 0 if unknown.
  std::int64_t least_tokens(std::string_view text) const;

  // Returns UTF-8 with U+FFFD for invalid bytes; omits unknown ids.
  std::string decode(const std::vector<std::int64_t>& token_ids,
                     bool skip_special_tokens = true) const;

  // Returns the id of the special token whose text is `text`, if there is one.
  std::optional<std::int64_t> special_id(std::string_view text) const;

  // Returns the text of each token, valid as long as this object.
  const TokenTexts& texts() const;

 private:
  class State;

  Tokenizer(std::unique_ptr<State> state, std::optional<std::string> prompt_template);

  std::unique_ptr<const State> state_;
  std::optional<std::string> prompt_template_;
};

}  // namespace skipdec::runtime
