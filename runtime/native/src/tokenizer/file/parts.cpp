#include "tokenizer/file/parts.h"

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "json/fields.h"
#include "tokenizer/file/kinds.h"
#include "tokenizer/file/model_events.h"
#include "tokenizer/file/special_tokens.h"
#include "tokenizer/file/text_steps.h"
#include "tokenizer/file/unsupported.h"

namespace skipdec::runtime {
namespace {

using nlohmann::json;

constexpr std::size_t kMostValues = std::size_t{1} << 27;  // their sizes are bounded individually

// Reads a flag; absent and null count as false.
bool optional_flag(Fields& fields, const char* name) {
  return fields.find(name) != nullptr && fields.boolean(name, false);
}

// The models of the `tokenizers` package.
constexpr std::array<std::string_view, 4> kModels{"BPE", "WordPiece", "WordLevel", "Unigram"};

PairTable read_merges(const TextList& merges, const Vocabulary& vocabulary,
                      const Document& document) {
  const auto id_of = [&](std::string_view token) {
    const auto id = vocabulary.id_of(token);
    if (!id)
      document.refuse("model.merges",
                      "needs the token " + shown(json(token)) + ", which vocab lacks");
    return *id;
  };
  PairTable table(merges.size() / 2);
  std::string made;
  for (std::size_t rank = 0; 2 * rank < merges.size(); ++rank) {
    const std::string_view left = merges[2 * rank], right = merges[2 * rank + 1];
    made.assign(left).append(right);
    table.put(id_of(left), id_of(right), {static_cast<std::uint32_t>(rank), id_of(made)});
  }
  return table;
}

void check_kind_of_model(Fields& model, bool has_vocabulary_and_merges, const Document& document) {
  // Old files have no type; vocabulary and merges distinguish BPE from the others.
  const std::string type = model.text("type", has_vocabulary_and_merges ? "BPE" : "without a type");
  if (type != "BPE") refuse_kind("model", type, kModels, document);
  if (!has_vocabulary_and_merges) document.refuse("model", "lacks vocab or merges");
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const std::string affix = model.optional_text(name).value_or("");
    if (!affix.empty())
      throw UnsupportedTokenizer(document.subject,
                                 "has the " + std::string(name) + " " + shown(json(affix)));
  }
  const json* dropout = model.find("dropout");
  if (dropout != nullptr && !(dropout->is_number() && *dropout >= 0 && *dropout <= 1))
    model.refuse("dropout", "is " + shown(*dropout) + "; allowed: a number from 0 to 1");
  if (dropout != nullptr && *dropout != 0)
    throw UnsupportedTokenizer(document.subject, "has a model with dropout: random tokens");
}

BytePairModel read_model(const json& value, ModelEvents& events, const Document& document) {
  Fields model(value, "model", document);
  check_kind_of_model(model, events.has_model(), document);
  BytePairModel read;
  read.vocabulary = std::move(events.vocabulary());
  const std::string problem = read.vocabulary.finish();
  if (!problem.empty()) document.refuse("model.vocab", problem);
  read.merges = read_merges(events.merges(), read.vocabulary, document);
  read.unknown_token = model.optional_text("unk_token");
  read.byte_fallback = optional_flag(model, "byte_fallback");
  read.fuse_unknown = optional_flag(model, "fuse_unk");
  read.ignore_merges = optional_flag(model, "ignore_merges");
  return read;
}

// Checks truncation and padding, which only training uses.
void check_lengths(Fields& file, const Document& document) {
  if (const json* found = file.find("truncation")) {
    Fields truncation(*found, "truncation", document);
    for (const char* name : {"max_length", "stride"}) truncation.integer(name, 0, INT64_MAX);
    truncation.text("strategy");
  }
  if (const json* found = file.find("padding")) {
    Fields padding(*found, "padding", document);
    padding.value("strategy");
    for (const char* name : {"direction", "pad_token"}) padding.text(name);
    for (const char* name : {"pad_id", "pad_type_id"}) padding.integer(name, 0, UINT32_MAX);
    padding.optional_integer("pad_to_multiple_of", 0, INT64_MAX);
  }
}

AddedToken read_added_token(const json& entry, const Document& document) {
  Fields fields(entry, "added_tokens", document);
  fields.integer("id", 0, kMaxTokens - 1);
  AddedToken token;
  token.content = token.text = fields.text("content");
  token.single_word = required_flag(fields, "single_word");
  token.lstrip = required_flag(fields, "lstrip");
  token.rstrip = required_flag(fields, "rstrip");
  token.normalized = required_flag(fields, "normalized");
  token.special = required_flag(fields, "special");
  return token;
}

// Assigns the ids that the `tokenizers` package would, regardless of those in the file: the model's
// if the content is one of its tokens, otherwise consecutive ids after the model's.
std::vector<AddedToken> read_added_tokens(Fields& file, const Vocabulary& vocabulary,
                                          const Document& document) {
  std::vector<AddedToken> tokens;
  if (file.find("added_tokens") == nullptr) return tokens;
  std::unordered_set<std::string> contents;
  auto next_id = static_cast<std::uint32_t>(vocabulary.size());
  std::size_t num_bytes = 0;
  for (const json& entry : file.array("added_tokens", kMaxAddedBytes)) {
    AddedToken token = read_added_token(entry, document);
    if (token.content.empty()) continue;
    num_bytes += token.content.size();
    if (num_bytes > kMaxAddedBytes)
      file.refuse("added_tokens",
                  "holds texts of more than " + std::to_string(kMaxAddedBytes) + " bytes");
    if (token.content.size() > kMaxAddedTokenBytes)
      throw UnsupportedTokenizer(document.subject,
                                 "has an added token of " + std::to_string(token.content.size()) +
                                     " bytes, more than " + std::to_string(kMaxAddedTokenBytes));
    if (!contents.insert(token.content).second)
      file.refuse("added_tokens", "has " + shown(json(token.content)) + " twice");
    const auto own = vocabulary.id_of(token.content);
    token.id = own ? *own : next_id++;
    tokens.push_back(std::move(token));
  }
  return tokens;
}

// Normalizes the texts of added tokens. Refuses empty ones, and equal ones, of which the
// `tokenizers` package finds one at random.
void normalize(std::vector<AddedToken>& tokens, const Normalizer& normalizer,
               const Document& document) {
  std::unordered_map<std::string, std::string> contents;
  for (AddedToken& token : tokens) {
    if (!token.normalized) continue;
    token.text = normalizer.normalized(token.content);
    const std::string named = shown(json(token.content));
    if (token.text.empty())
      throw UnsupportedTokenizer(document.subject, "has the added token " + named +
                                                       ", of which the normalizer leaves nothing");
    const auto [other, is_new] = contents.emplace(token.text, named);
    if (!is_new)
      document.refuse("added_tokens", "has " + other->second + " and " + named +
                                          ", which are equal after the normalizer");
  }
}

}  // namespace

TokenizerParts read_tokenizer(std::string_view json, const std::string& subject) {
  JsonLimits limits;
  limits.max_bytes = constants::kMaxTokenizerBytes;
  limits.max_values = kMostValues;
  const Document document{Status::kBundle, subject, "export the model again"};
  ModelEvents events(document);
  if (json.substr(0, 3) == "\xEF\xBB\xBF") document.refuse("", "begins with a byte order mark");
  read_json(json, document, limits, events);
  const nlohmann::json tree = events.take_tree();
  Fields file(tree, "", document);
  TokenizerParts parts;
  for (const char* name : {"version", "truncation", "padding", "added_tokens", "normalizer",
                           "pre_tokenizer", "post_processor", "decoder", "model"})
    file.ignore(name);
  file.require_no_others();
  check_lengths(file, document);
  if (const std::string version = file.text("version", "1.0"); version != "1.0")
    file.refuse("version", "is " + shown(nlohmann::json(version)) + "; allowed: \"1.0\"");
  parts.normalizer = read_normalizer(file.find("normalizer"), document);
  parts.pre_tokenizer = read_pre_tokenizer(file.find("pre_tokenizer"), document);
  parts.decoder = read_decoder(file.find("decoder"), document);
  check_together(parts.normalizer, parts.pre_tokenizer, document);
  parts.model = read_model(file.value("model"), events, document);
  parts.model.byte_level = parts.pre_tokenizer.byte_level;
  parts.added_tokens = read_added_tokens(file, parts.model.vocabulary, document);
  normalize(parts.added_tokens, parts.normalizer, document);
  parts.special_tokens = read_special_tokens(file.find("post_processor"), document);
  return parts;
}

}  // namespace skipdec::runtime
