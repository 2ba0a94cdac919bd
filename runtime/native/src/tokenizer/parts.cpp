#include "tokenizer/parts.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tokenizer/fields.h"
#include "tokenizer/model_events.h"
#include "tokenizer/special_tokens.h"

namespace skipdec::runtime {
namespace {

using nlohmann::json;

PairTable read_merges(const TextList& merges, const Vocabulary& vocabulary,
                      const TokenizerFields& model) {
  const auto id_of = [&](std::string_view token) {
    const auto id = vocabulary.id_of(token);
    if (!id) model.refuse("merges need the token " + std::string(token) + ", which vocab lacks");
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

void check_kind_of_model(const TokenizerFields& model, bool has_vocabulary_and_merges) {
  // Old files name no type; then this is what tells BPE from the others.
  const std::string type = model.optional_text("type").value_or(
      has_vocabulary_and_merges ? "BPE" : "of a kind that it does not name");
  if (type != "BPE") model.unsupported("the model is " + type);
  if (!has_vocabulary_and_merges) model.refuse("lacks vocab or merges");
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!model.optional_text(name).value_or("").empty())
      model.unsupported(std::string(name) + " is " + model.text(name));
  if (model.boolean("byte_fallback", false)) model.unsupported("byte_fallback is true");
}

BytePairModel read_model(const TokenizerFields& document, const json& tree, ModelEvents& events) {
  const TokenizerFields model = document.inside(document.object("model"), "model");
  check_kind_of_model(model, events.has_model());
  const json dropout = tree["model"].value("dropout", json());
  if (!dropout.is_null() && dropout != 0) model.unsupported("dropout makes its tokens random");
  BytePairModel read;
  read.vocabulary = std::move(events.vocabulary());
  const std::string problem = read.vocabulary.finish();
  if (!problem.empty()) model.refuse("vocab: " + problem);
  read.merges = read_merges(events.merges(), read.vocabulary, model);
  read.unknown_token = model.optional_text("unk_token");
  read.fuse_unknown = model.boolean("fuse_unk", false);
  read.ignore_merges = model.boolean("ignore_merges", false);
  return read;
}

void read_pre_tokenizer(const TokenizerFields& document, TokenizerParts& parts) {
  if (!document.has("pre_tokenizer")) document.unsupported("has no pre-tokenizer");
  const json* object = &document.object("pre_tokenizer");
  if (document.inside(*object, "pre_tokenizer").text("type") == "Sequence") {
    const json& all = document.inside(*object, "pre_tokenizer").array("pretokenizers");
    if (all.size() != 1) document.unsupported("has a sequence of pre-tokenizers");
    object = &all[0];
    parts.one_pre_tokenizer = false;
  }
  const TokenizerFields fields = document.inside(*object, "pre_tokenizer");
  if (fields.text("type") != "ByteLevel")
    fields.unsupported("the pre-tokenizer is " + fields.text("type"));
  parts.add_prefix_space = fields.boolean("add_prefix_space");
  parts.use_regex = fields.boolean("use_regex", true);
}

void check_other_kinds(const TokenizerFields& document) {
  if (document.has("version") && document.text("version") != "1.0")
    document.refuse("version is " + document.text("version") + "; allowed: 1.0");
  if (document.has("normalizer"))
    document.unsupported("the normalizer is " +
                         document.inside(document.object("normalizer"), "normalizer")
                             .optional_text("type")
                             .value_or("unnamed"));
  if (!document.has("decoder")) document.unsupported("has no decoder");
  const TokenizerFields decoder = document.inside(document.object("decoder"), "decoder");
  if (decoder.text("type") != "ByteLevel")
    decoder.unsupported("the decoder is " + decoder.text("type"));
}

AddedToken read_added_token(const TokenizerFields& fields, const json& entry) {
  fields.token_id(entry.value("id", json()), "id");
  AddedToken token;
  token.content = fields.text("content");
  token.single_word = fields.boolean("single_word");
  token.lstrip = fields.boolean("lstrip");
  token.rstrip = fields.boolean("rstrip");
  token.normalized = fields.boolean("normalized");
  token.special = fields.boolean("special");
  return token;
}

// As the `tokenizers` package does, whatever ids the file gives: the model's, where the content is
// a token, else one after another behind the number of the model's tokens.
std::vector<AddedToken> read_added_tokens(const TokenizerFields& document,
                                          const Vocabulary& vocabulary) {
  std::vector<AddedToken> tokens;
  if (!document.has("added_tokens")) return tokens;
  std::unordered_map<std::string, std::uint32_t> known;
  auto next_id = static_cast<std::uint32_t>(vocabulary.size());
  std::size_t num_bytes = 0;
  for (const json& entry : document.array("added_tokens")) {
    const TokenizerFields fields = document.inside(entry, "added_tokens");
    AddedToken token = read_added_token(fields, entry);
    if (token.content.empty()) continue;
    num_bytes += token.content.size();
    if (num_bytes > kMaxAddedBytes)
      fields.refuse("they hold more than " + std::to_string(kMaxAddedBytes) + " bytes");
    const auto own = vocabulary.id_of(token.content);
    token.id = own ? *own : next_id++;
    if (!known.emplace(token.content, token.id).second)
      fields.refuse("the token " + token.content + " comes twice");
    tokens.push_back(std::move(token));
  }
  return tokens;
}

}  // namespace

TokenizerParts read_tokenizer(std::string_view json, const std::string& subject) {
  JsonLimits limits;
  limits.max_bytes = kMaxTokenizerBytes;
  limits.max_values = std::size_t{1} << 27;  // their size is limited; those of the tree are
  ModelEvents events(subject, limits);
  read_json(json, subject, limits, events);
  const nlohmann::json tree = events.take_tree();
  const TokenizerFields document(tree, subject, "");
  TokenizerParts parts;
  check_other_kinds(document);
  read_pre_tokenizer(document, parts);
  parts.model = read_model(document, tree, events);
  parts.added_tokens = read_added_tokens(document, parts.model.vocabulary);
  parts.special_tokens = read_special_tokens(document);
  return parts;
}

}  // namespace skipdec::runtime
