#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "constants.h"
#include "errors.h"
#include "tokenizer/file/parts.h"
#include "tokenizer/incremental_decoder.h"
#include "tokenizer/text/utf8.h"

namespace skipdec::runtime {
namespace {

constexpr std::size_t kMaxTextBytes = std::size_t{1} << 30;

// Returns the maximum bytes of text per token; 0 if the tokens of a text may lack some of its
// bytes.
std::size_t most_bytes_of_token(const BytePairs& pairs, const TokenizerParts& parts) {
  if (!pairs.has_all_bytes()) return 0;
  std::size_t longest = 0;
  for (const AddedToken& token : parts.added_tokens) {
    if (token.lstrip || token.rstrip) return 0;
    longest = std::max({longest, token.content.size(), token.text.size()});
  }
  for (std::size_t place = 0; place < pairs.vocabulary().size(); ++place)
    longest = std::max(longest, pairs.vocabulary().text_at(place).size());
  return longest * parts.normalizer.most_shrinkage();
}

}  // namespace

class Tokenizer::State {
 public:
  explicit State(TokenizerParts parts)
      : pairs_(std::move(parts.model)),
        texts_(pairs_.vocabulary(), parts.added_tokens, std::move(parts.decoder)),
        most_bytes_(most_bytes_of_token(pairs_, parts)),
        added_(std::move(parts.added_tokens)),
        normalizer_(std::move(parts.normalizer)),
        pre_tokenizer_(std::move(parts.pre_tokenizer)),
        special_(std::move(parts.special_tokens)) {}

  std::vector<std::int64_t> encode(std::string_view text, bool add_special_tokens) const {
    std::vector<std::int64_t> token_ids;
    token_ids.reserve(text.size() / 4 + 8);
    if (add_special_tokens)
      token_ids.insert(token_ids.end(), special_.before.begin(), special_.before.end());
    BytePairs::Workspace workspace;
    for (const TextSegment& segment : added_.in_text(text)) {
      if (segment.token_id) {
        token_ids.push_back(*segment.token_id);
      } else {
        const std::string_view part = text.substr(segment.start, segment.end - segment.start);
        encode_part(part, segment.start == 0, token_ids, workspace);
      }
    }
    if (add_special_tokens)
      token_ids.insert(token_ids.end(), special_.after.begin(), special_.after.end());
    return token_ids;
  }

  std::optional<std::int64_t> special_id(std::string_view text) const {
    const auto& tokens = added_.tokens();
    const auto found = std::find_if(tokens.begin(), tokens.end(), [text](const AddedToken& token) {
      return token.special && token.content == text;
    });
    if (found == tokens.end()) return std::nullopt;
    return found->id;
  }

  const TokenTexts& texts() const { return texts_; }
  std::size_t most_bytes() const { return most_bytes_; }

 private:
  // Encodes a part between added tokens; `is_first`: the text begins with it.
  void encode_part(std::string_view part, bool is_first, std::vector<std::int64_t>& token_ids,
                   BytePairs::Workspace& workspace) const {
    std::string normalized;
    if (!normalizer_.steps().empty()) part = normalized = normalizer_.normalized(part);
    for (const TextSegment& segment : added_.in_normalized(part)) {
      if (segment.token_id) {
        token_ids.push_back(*segment.token_id);
        continue;
      }
      const std::string_view words = part.substr(segment.start, segment.end - segment.start);
      pre_tokenizer_.divide(words, is_first && segment.start == 0, [&](std::string_view piece) {
        pairs_.encode(piece, token_ids, workspace);
      });
    }
  }

  BytePairs pairs_;
  TokenTexts texts_;
  std::size_t most_bytes_;
  AddedTokens added_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  SpecialTokens special_;
};

std::unique_ptr<Tokenizer> Tokenizer::parse(std::string_view json, const std::string& subject,
                                            std::optional<std::string> prompt_template) {
  auto state = std::make_unique<State>(read_tokenizer(json, subject));
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(state), std::move(prompt_template)));
}

Tokenizer::Tokenizer(std::unique_ptr<State> state, std::optional<std::string> prompt_template)
    : state_(std::move(state)), prompt_template_(std::move(prompt_template)) {}

Tokenizer::~Tokenizer() = default;

std::vector<std::int64_t> Tokenizer::encode(std::string_view text, bool add_special_tokens,
                                            const char* subject) const {
  if (text.size() > kMaxTextBytes)
    throw Error(
        Status::kCapacity, subject,
        "has " + std::to_string(text.size()) + " bytes; allowed: " + std::to_string(kMaxTextBytes));
  const std::size_t valid = valid_utf8_length(text);
  if (valid < text.size())
    throw Error(Status::kUsage, subject,
                "is no UTF-8 at byte " + std::to_string(valid) + " of " +
                    std::to_string(text.size()) + "; encode it as UTF-8");
  return state_->encode(text, add_special_tokens);
}

std::vector<std::int64_t> Tokenizer::encode_prompt(std::string_view prompt) const {
  if (!prompt_template_) return encode(prompt);
  const std::size_t place = prompt_template_->find(constants::kPromptPlaceholder);
  std::string whole(*prompt_template_, 0, place);
  whole += prompt;
  whole.append(*prompt_template_, place + constants::kPromptPlaceholder.size());
  return encode(whole);
}

std::int64_t Tokenizer::least_tokens(std::string_view text) const {
  const std::size_t most = state_->most_bytes();
  return most == 0 ? 0 : static_cast<std::int64_t>((text.size() + most - 1) / most);
}

std::string Tokenizer::decode(const std::vector<std::int64_t>& token_ids,
                              bool skip_special_tokens) const {
  std::string text;
  IncrementalDecoder decoder(*this, skip_special_tokens);
  for (const std::int64_t token_id : token_ids) decoder.push(token_id, text);
  decoder.flush(text);
  return text;
}

std::optional<std::int64_t> Tokenizer::special_id(std::string_view text) const {
  return state_->special_id(text);
}

const TokenTexts& Tokenizer::texts() const { return state_->texts(); }

}  // namespace skipdec::runtime
