#include "tokenizer/special_tokens.h"

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace skipdec::runtime {
namespace {

using nlohmann::json;

// What one post-processor adds; nothing if it only changes offsets.
using Reader = std::optional<SpecialTokens> (*)(const TokenizerFields& processor);

std::optional<SpecialTokens> read_processor(const TokenizerFields& processor);

std::optional<SpecialTokens> read_byte_level(const TokenizerFields& /*processor*/) {
  return std::nullopt;
}

std::uint32_t second_of_pair(const TokenizerFields& processor, const char* name) {
  const json& pair = processor.array(name);
  if (pair.size() != 2) processor.refuse(std::string(name) + " is no pair of a token and its id");
  return processor.token_id(pair[1], name);
}

std::optional<SpecialTokens> read_sentence_pair(const TokenizerFields& processor) {
  return SpecialTokens{{second_of_pair(processor, "cls")}, {second_of_pair(processor, "sep")}};
}

std::optional<SpecialTokens> read_template(const TokenizerFields& processor) {
  const json& tokens = processor.object("special_tokens");
  SpecialTokens read;
  std::size_t num_texts = 0;
  for (const json& piece : processor.array("single")) {
    const TokenizerFields fields = processor.inside(piece, "single");
    if (fields.has("Sequence")) {
      if (fields.inside(fields.object("Sequence"), "Sequence").text("id") != "A")
        processor.refuse("the template for one text has a second one");
      ++num_texts;
      continue;
    }
    const std::string name =
        fields.inside(fields.object("SpecialToken"), "SpecialToken").text("id");
    const auto token = tokens.find(name);
    if (token == tokens.end()) processor.refuse("special_tokens lacks " + name);
    for (const json& id : processor.inside(*token, "special_tokens").array("ids"))
      (num_texts == 0 ? read.before : read.after).push_back(processor.token_id(id, "ids"));
  }
  if (num_texts != 1) processor.unsupported("the template holds the text more or less than once");
  return read;
}

std::optional<SpecialTokens> read_sequence(const TokenizerFields& processor) {
  std::optional<SpecialTokens> read;
  for (const json& inner : processor.array("processors")) {
    const auto tokens = read_processor(processor.inside(inner, "processors"));
    if (read && tokens) processor.unsupported("two post-processors add tokens");
    if (tokens) read = tokens;
  }
  return read;
}

const std::map<std::string, Reader>& readers() {
  static const std::map<std::string, Reader> by_type = {
      {"ByteLevel", read_byte_level},
      {"RobertaProcessing", read_sentence_pair},
      {"BertProcessing", read_sentence_pair},
      {"TemplateProcessing", read_template},
      {"Sequence", read_sequence},
  };
  return by_type;
}

std::optional<SpecialTokens> read_processor(const TokenizerFields& processor) {
  const std::string type = processor.text("type");
  const auto reader = readers().find(type);
  if (reader == readers().end()) processor.unsupported("the post-processor is " + type);
  return reader->second(processor);
}

}  // namespace

SpecialTokens read_special_tokens(const TokenizerFields& document) {
  if (!document.has("post_processor")) return {};
  const TokenizerFields processor =
      document.inside(document.object("post_processor"), "post_processor");
  return read_processor(processor).value_or(SpecialTokens{});
}

}  // namespace skipdec::runtime
