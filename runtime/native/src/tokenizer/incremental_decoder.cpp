#include "tokenizer/incremental_decoder.h"

#include <string>
#include <string_view>

#include "tokenizer/token_texts.h"

namespace skipdec::runtime {

IncrementalDecoder::IncrementalDecoder(const Tokenizer& tokenizer, bool skip_special_tokens)
    : tokenizer_(&tokenizer),
      skip_special_tokens_(skip_special_tokens),
      may_be_stripped_(tokenizer.texts().decoder().most_stripped) {}

void IncrementalDecoder::push(std::int64_t token_id, std::string& text) {
  const TokenTexts& texts = tokenizer_->texts();
  if (skip_special_tokens_ && texts.is_special(token_id)) return;
  if (texts.decoder().byte_level) {
    repair_.push(texts.of(token_id), text);
  } else if (texts.is_byte(token_id)) {
    run_ += texts.of(token_id);
  } else if (texts.is_token(token_id)) {  // any other id does not end a run of bytes either
    const std::size_t start = text.size();
    end_run(text);
    text += texts.of(token_id);
    strip(start, text);
  }
}

void IncrementalDecoder::flush(std::string& text) {
  const std::size_t start = text.size();
  repair_.flush(text);
  end_run(text);
  strip(start, text);
}

// Ends a run of bytes: text if all of them are valid, else U+FFFD for each.
void IncrementalDecoder::end_run(std::string& text) {
  if (valid_utf8_length(run_) == run_.size()) {
    text += run_;
  } else {
    for (std::size_t byte = 0; byte < run_.size(); ++byte) text += kReplacementCharacter;
  }
  run_.clear();
}

// Strips characters at the start of the decoded text, whose next part is text[start, …).
void IncrementalDecoder::strip(std::size_t start, std::string& text) {
  const std::string& stripped = tokenizer_->texts().decoder().stripped;
  std::size_t end = start;
  while (may_be_stripped_ > 0 && end < text.size()) {
    const bool is_equal = text.compare(end, stripped.size(), stripped) == 0;
    may_be_stripped_ = is_equal ? may_be_stripped_ - 1 : 0;
    if (is_equal) end += stripped.size();
  }
  text.erase(start, end - start);
}

}  // namespace skipdec::runtime
