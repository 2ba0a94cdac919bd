#include "tokenizer/file/special_tokens.h"

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tokenizer/file/kinds.h"
#include "tokenizer/file/unsupported.h"

namespace skipdec::runtime {
namespace {

using nlohmann::json;

constexpr const char* kPlace = "post_processor";
constexpr std::size_t kMostParts = 1024;

// Reads the tokens that one post-processor adds; std::nullopt if it only changes offsets.
using Reader = std::optional<SpecialTokens> (*)(const json& processor, const Document& document);

std::optional<SpecialTokens> read_processor(const json& processor, const Document& document);

std::uint32_t token_id(const json& value, const Document& document) {
  return static_cast<std::uint32_t>(integer_of(value, kPlace, 0, kMaxTokens - 1, document));
}

std::optional<SpecialTokens> read_byte_level(const json& processor, const Document& document) {
  Fields fields(processor, kPlace, document);
  check_byte_level(fields);
  return std::nullopt;
}

std::optional<SpecialTokens> read_sentence_pair(const json& processor, const Document& document) {
  Fields fields(processor, kPlace, document);
  const auto id_of = [&](const char* name) {
    const json& pair = fields.array(name, 2);
    if (pair.size() != 2)
      fields.refuse(name,
                    "has " + std::to_string(pair.size()) + " entries; allowed: a token and its id");
    text_of(pair[0], fields.place_of(name), document);
    return token_id(pair[1], document);
  };
  if (fields.text("type") == "RobertaProcessing")
    for (const char* name : {"add_prefix_space", "trim_offsets"}) required_flag(fields, name);
  return SpecialTokens{{id_of("cls")}, {id_of("sep")}};
}

// Checks a part of a template, {"Sequence": {…}} or {"SpecialToken": {…}}.
void check_part(const json& entry, const std::string& place, const Document& document) {
  Fields part(entry, place, document);
  const bool is_sequence = entry.contains("Sequence");
  const char* const name = is_sequence ? "Sequence" : "SpecialToken";
  Fields fields(part.value(name), part.place_of(name), document);
  part.require_no_others();
  const std::string& id = fields.text("id");
  if (is_sequence && id != "A" && id != "B")
    fields.refuse("id", "is " + shown(json(id)) + "; allowed: A, B");
  fields.integer("type_id", 0, UINT32_MAX);
}

void check_template(Fields& fields, const Document& document) {
  for (const char* name : {"single", "pair"})
    for (const json& entry : fields.array(name, kMostParts))
      check_part(entry, fields.place_of(name), document);
  const json& tokens = fields.value("special_tokens");
  const std::string place = fields.place_of("special_tokens");
  if (!tokens.is_object()) fields.refuse("special_tokens", "is " + shown(tokens));
  for (const json& token : tokens) {
    Fields each(token, place, document);
    each.text("id");
    for (const json& id : each.array("ids", kMostParts)) token_id(id, document);
    for (const json& text : each.array("tokens", kMostParts)) text_of(text, place, document);
  }
}

std::optional<SpecialTokens> read_template(const json& processor, const Document& document) {
  Fields fields(processor, kPlace, document);
  check_template(fields, document);
  const json& tokens = fields.value("special_tokens");
  SpecialTokens read;
  std::size_t num_texts = 0;
  for (const json& entry : fields.array("single", kMostParts)) {
    Fields part(entry, fields.place_of("single"), document);
    if (const json* sequence = part.find("Sequence")) {
      if (Fields(*sequence, part.place_of("Sequence"), document).text("id") != "A")
        fields.refuse("single", "has a second text");
      ++num_texts;
      continue;
    }
    const std::string& name =
        Fields(part.value("SpecialToken"), part.place_of("SpecialToken"), document).text("id");
    const auto token = tokens.find(name);
    if (token == tokens.end()) fields.refuse("special_tokens", "lacks " + shown(json(name)));
    Fields ids(*token, fields.place_of("special_tokens"), document);
    for (const json& id : ids.array("ids", kMostParts))
      (num_texts == 0 ? read.before : read.after).push_back(token_id(id, document));
  }
  if (num_texts != 1)
    throw UnsupportedTokenizer(document.subject, "has a template without the text, or with two");
  return read;
}

std::optional<SpecialTokens> read_sequence(const json& processor, const Document& document) {
  std::optional<SpecialTokens> read;
  for (const json& inner : Fields(processor, kPlace, document).array("processors", kMostParts)) {
    const auto tokens = read_processor(inner, document);
    if (read && tokens)
      throw UnsupportedTokenizer(document.subject, "has two post-processors that add tokens");
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

std::optional<SpecialTokens> read_processor(const json& processor, const Document& document) {
  const std::string& type = Fields(processor, kPlace, document).text("type");
  const auto reader = readers().find(type);
  if (reader == readers().end())
    document.refuse(kPlace, "has the unknown type " + shown(json(type)));
  return reader->second(processor, document);
}

}  // namespace

SpecialTokens read_special_tokens(const json* post_processor, const Document& document) {
  if (post_processor == nullptr) return {};
  return read_processor(*post_processor, document).value_or(SpecialTokens{});
}

}  // namespace skipdec::runtime
