#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "constants.h"
#include "errors.h"
#include "tokenizer/file/parts.h"
#include "tokenizer/text/pieces.h"
#include "tokenizer/text/utf8.h"
#include "tokenizer/token_bytes.h"

namespace skipdec::runtime {
namespace {

constexpr std::size_t kMaxTextBytes = std::size_t{1} << 30;

// Returns the number of bytes of the longest token as written in the file; 0 if the tokens of a
// text may lack some of its bytes.
std::size_t longest_token(const BytePairs& pairs, const TokenizerParts& parts) {
  if (!parts.one_pre_tokenizer || !pairs.has_all_bytes()) return 0;
  std::size_t longest = 0;
  for (const AddedToken& token : parts.added_tokens) {
    if (token.lstrip || token.rstrip) return 0;
    longest = std::max(longest, token.content.size());
  }
  for (std::size_t place = 0; place < pairs.vocabulary().size(); ++place)
    longest = std::max(longest, pairs.vocabulary().text_at(place).size());
  return longest;
}

}  // namespace

class Tokenizer::State {
 public:
  explicit State(TokenizerParts parts)
      : pairs_(std::move(parts.model)),
        bytes_(pairs_.vocabulary(), parts.added_tokens),
        longest_token_(longest_token(pairs_, parts)),
        added_(std::move(parts.added_tokens)),
        special_(std::move(parts.special_tokens)),
        add_prefix_space_(parts.add_prefix_space),
        use_regex_(parts.use_regex) {
    vocab_size_ = pairs_.vocabulary().size();
    for (const AddedToken& token : added_.tokens())
      if (!pairs_.vocabulary().id_of(token.content)) ++vocab_size_;
  }

  std::vector<std::int64_t> encode(std::string_view text, bool add_special_tokens) const {
    std::vector<std::int64_t> token_ids;
    token_ids.reserve(text.size() / 4 + 8);
    if (add_special_tokens)
      token_ids.insert(token_ids.end(), special_.before.begin(), special_.before.end());
    BytePairs::Workspace workspace;
    for (const TextSegment& segment : added_.segments(text)) {
      if (segment.token_id) {
        token_ids.push_back(*segment.token_id);
      } else {
        encode_words(text.substr(segment.start, segment.end - segment.start), token_ids, workspace);
      }
    }
    if (add_special_tokens)
      token_ids.insert(token_ids.end(), special_.after.begin(), special_.after.end());
    return token_ids;
  }

  const TokenBytes& bytes() const { return bytes_; }
  std::size_t longest() const { return longest_token_; }
  std::size_t vocab_size() const { return vocab_size_; }

 private:
  void encode_words(std::string_view text, std::vector<std::int64_t>& token_ids,
                    BytePairs::Workspace& workspace) const {
    std::string spaced;
    if (add_prefix_space_ && text.front() != ' ') {
      spaced.reserve(text.size() + 1);
      spaced.append(" ").append(text);
      text = spaced;
    }
    for (std::size_t start = 0; start < text.size();) {
      const std::size_t end = use_regex_ ? end_of_piece(text, start) : text.size();
      pairs_.encode(text.substr(start, end - start), token_ids, workspace);
      start = end;
    }
  }

  BytePairs pairs_;
  TokenBytes bytes_;
  std::size_t longest_token_;
  AddedTokens added_;
  SpecialTokens special_;
  bool add_prefix_space_, use_regex_;
  std::size_t vocab_size_ = 0;
};

std::unique_ptr<Tokenizer> Tokenizer::parse(std::string_view json, const std::string& subject,
                                            std::optional<std::string> prompt_template) {
  auto state = std::make_unique<State>(read_tokenizer(json, subject));
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(state), std::move(prompt_template)));
}

Tokenizer::Tokenizer(std::unique_ptr<State> state, std::optional<std::string> prompt_template)
    : state_(std::move(state)), prompt_template_(std::move(prompt_template)) {}

Tokenizer::~Tokenizer() = default;

std::vector<std::int64_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  if (text.size() > kMaxTextBytes)
    throw Error(
        Status::kCapacity, "prompt",
        "has " + std::to_string(text.size()) + " bytes; allowed: " + std::to_string(kMaxTextBytes));
  const std::size_t valid = valid_utf8_length(text);
  if (valid < text.size())
    throw Error(Status::kUsage, "prompt",
                "is no UTF-8 at byte " + std::to_string(valid) + " of " +
                    std::to_string(text.size()) + "; encode it as UTF-8");
  return state_->encode(text, add_special_tokens);
}

std::vector<std::int64_t> Tokenizer::encode_prompt(std::string_view prompt) const {
  if (!prompt_template_) return encode(prompt);
  const std::size_t place = prompt_template_->find(constants::kPromptPlaceholder);
  if (place == std::string::npos) return encode(*prompt_template_);
  std::string whole(*prompt_template_, 0, place);
  whole += prompt;
  whole.append(*prompt_template_, place + constants::kPromptPlaceholder.size());
  return encode(whole);
}

std::int64_t Tokenizer::least_tokens(std::string_view text) const {
  const std::size_t longest = state_->longest();
  return longest == 0 ? 0 : static_cast<std::int64_t>((text.size() + longest - 1) / longest);
}

std::string Tokenizer::decode(const std::vector<std::int64_t>& token_ids,
                              bool skip_special_tokens) const {
  std::string text;
  Utf8Repair repair;
  for (const std::int64_t token_id : token_ids)
    if (!(skip_special_tokens && is_special(token_id))) repair.push(token_bytes(token_id), text);
  repair.flush(text);
  return text;
}

std::string Tokenizer::token_text(std::int64_t token_id) const { return decode({token_id}, false); }

bool Tokenizer::is_special(std::int64_t token_id) const {
  return state_->bytes().is_special(token_id);
}

std::string_view Tokenizer::token_bytes(std::int64_t token_id) const {
  return state_->bytes().of(token_id);
}

std::size_t Tokenizer::vocab_size() const { return state_->vocab_size(); }

}  // namespace skipdec::runtime
