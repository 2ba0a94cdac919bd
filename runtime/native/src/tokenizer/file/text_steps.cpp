#include "tokenizer/file/text_steps.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "texts.h"
#include "tokenizer/file/kinds.h"
#include "tokenizer/file/unsupported.h"
#include "tokenizer/text/characters.h"

namespace skipdec::runtime {
namespace {

using nlohmann::json;

constexpr std::size_t kMostSteps = 64;  // of one component
constexpr std::size_t kMostPrefixBytes = 16;
constexpr std::size_t kMostLengthening = 3;  // so that a text's length fits 32 bits

// The types of the `tokenizers` package; a bundle with any other name is damaged.
constexpr std::array<std::string_view, 14> kNormalizers{
    "BertNormalizer", "Strip", "StripAccents", "NFC",         "NFD",     "NFKC",    "NFKD",
    "Sequence",       "Nmt",   "Lowercase",    "Precompiled", "Replace", "Prepend", "ByteLevel"};
constexpr std::array<std::string_view, 12> kPreTokenizers{
    "BertPreTokenizer", "ByteLevel",  "CharDelimiterSplit", "Metaspace",       "Whitespace",
    "Sequence",         "Split",      "Punctuation",        "WhitespaceSplit", "Digits",
    "UnicodeScripts",   "FixedLength"};
constexpr std::array<std::string_view, 10> kDecoders{
    "BPEDecoder", "ByteLevel", "WordPiece", "Metaspace", "CTC",
    "Sequence",   "Replace",   "Fuse",      "Strip",     "ByteFallback"};
constexpr std::array<std::string_view, 5> kBehaviors{"Removed", "Isolated", "MergedWithPrevious",
                                                     "MergedWithNext", "Contiguous"};

[[noreturn]] void refuse_unsupported(const std::string& problem, const Document& document) {
  throw UnsupportedTokenizer(document.subject, problem);
}

// A component of a file, e.g. the normalizer.
struct Component {
  const char* place;  // in the file
  const char* name;   // in messages
  const char* parts;  // the member of a Sequence
};

// Appends the steps of a component, with those of sequences in their place.
// NOLINTNEXTLINE(misc-no-recursion): as deep as the JSON, which its reader limits
void add_steps(const json& value, const Component& component, const Document& document,
               std::vector<const json*>& steps) {
  Fields fields(value, component.place, document);
  if (fields.text("type") != "Sequence") {
    steps.push_back(&value);
    return;
  }
  for (const json& inner : fields.array(component.parts, kMostSteps))
    add_steps(inner, component, document, steps);
  if (steps.size() > kMostSteps)
    refuse_unsupported("has a " + std::string(component.name) + " of more than " +
                           std::to_string(kMostSteps) + " steps",
                       document);
}

std::vector<const json*> steps_of(const json* value, const Component& component,
                                  const Document& document) {
  std::vector<const json*> steps;
  if (value != nullptr) add_steps(*value, component, document, steps);
  return steps;
}

// Reads a text of one character.
std::string character_of(Fields& fields, const char* name) {
  const std::string& text = fields.text(name);
  std::size_t end = 0;
  if (!text.empty()) next_character(text, end);
  if (text.empty() || end != text.size())
    fields.refuse(name, "is " + shown(json(text)) + "; allowed: one character");
  return text;
}

// A pattern's text, and whether it is a regular expression.
struct Pattern {
  std::string text;
  bool is_expression;
};

Pattern pattern_of(Fields& fields, const Document& document) {
  const json& value = fields.value("pattern");
  Fields pattern(value, fields.place_of("pattern"), document);
  const bool is_expression = value.contains("Regex");
  Pattern read{pattern.text(is_expression ? "Regex" : "String"), is_expression};
  pattern.require_no_others();
  return read;
}

Replacement replacement_of(Fields& fields, const Component& component, const Document& document) {
  Pattern pattern = pattern_of(fields, document);
  Replacement read{std::move(pattern.text), fields.text("content")};
  if (pattern.is_expression || read.pattern.empty())
    refuse_unsupported("has a " + std::string(component.name) + " that replaces the expression " +
                           shown(json(read.pattern)),
                       document);
  return read;
}

std::size_t lengthening(const Composition& /*step*/) { return 3; }  // U+1D160
std::size_t lengthening(const Prefix& /*step*/) { return 1; }
std::size_t lengthening(const Replacement& step) {
  return std::max<std::size_t>(
      1, (step.content.size() + step.pattern.size() - 1) / step.pattern.size());
}

// Returns how many times its length a text may have after ``steps``, if it may have ``most`` times
// before. Beyond the limit, returns any number above it.
template <class Steps, class Of>
std::size_t lengthened(std::size_t most, const Steps& steps, const Of& of) {
  for (const auto& step : steps)
    most = std::min(kMostLengthening + 1, most) * std::min(kMostLengthening + 1, of(step));
  return most;
}

void require_short(std::size_t lengthening, const Component& component, const Document& document) {
  if (lengthening > kMostLengthening)
    refuse_unsupported("has a " + std::string(component.name) +
                           " that may lengthen a text more than " +
                           std::to_string(kMostLengthening) + " times",
                       document);
}

constexpr Component kNormalizer{"normalizer", "normalizer", "normalizers"};

using NormalizerReader = NormalizerStep (*)(Fields& fields, const Document& document);

NormalizerStep read_composition(Fields& /*fields*/, const Document& /*document*/) {
  return Composition{};
}

NormalizerStep read_prefix(Fields& fields, const Document& document) {
  Prefix step{fields.text("prepend")};
  if (step.prefix.size() > kMostPrefixBytes)
    refuse_unsupported("has a normalizer that prepends " + shown(json(step.prefix)), document);
  return step;
}

NormalizerStep read_replacement(Fields& fields, const Document& document) {
  return replacement_of(fields, kNormalizer, document);
}

const std::map<std::string_view, NormalizerReader>& normalizer_readers() {
  static const std::map<std::string_view, NormalizerReader> by_type = {
      {"NFC", read_composition}, {"Prepend", read_prefix}, {"Replace", read_replacement}};
  return by_type;
}

constexpr Component kPreTokenizer{"pre_tokenizer", "pre-tokenizer", "pretokenizers"};

using PreTokenizerReader = void (*)(Fields& fields, PreTokenizer& read, const Document& document);

void read_split(Fields& fields, PreTokenizer& read, const Document& document) {
  const Pattern pattern = pattern_of(fields, document);
  const std::string& behavior = fields.text("behavior");
  if (std::find(kBehaviors.begin(), kBehaviors.end(), behavior) == kBehaviors.end())
    fields.refuse("behavior", "is " + shown(json(behavior)) + "; allowed: " + joined(kBehaviors));
  const bool inverted = required_flag(fields, "invert");
  const Scanner scanner = pattern.is_expression ? scanner_of(pattern.text) : nullptr;
  if (!scanner)
    refuse_unsupported(
        "has a pre-tokenizer that splits at the expression " + shown(json(pattern.text)), document);
  if (behavior != "Isolated" || inverted)
    refuse_unsupported("has a pre-tokenizer that splits with the behavior " +
                           shown(json(behavior)) + (inverted ? ", inverted" : ""),
                       document);
  read.splits.push_back(scanner);
}

void read_digits(Fields& fields, PreTokenizer& read, const Document& /*document*/) {
  const bool individual = required_flag(fields, "individual_digits");
  read.splits.emplace_back(individual ? end_of_single_digits : end_of_digits);
}

void read_byte_level_pieces(Fields& fields, PreTokenizer& read, const Document& /*document*/) {
  check_byte_level(fields);
  read.byte_level = true;
  const bool has_blank = required_flag(fields, "add_prefix_space");
  read.blank_before = has_blank ? BlankBefore::kAlways : BlankBefore::kNever;
  if (fields.boolean("use_regex", true)) read.scanner = end_of_gpt2_piece;
}

void read_metaspace(Fields& fields, PreTokenizer& read, const Document& /*document*/) {
  static const std::map<std::string_view, BlankBefore> schemes = {{"always", BlankBefore::kAlways},
                                                                  {"first", BlankBefore::kFirst},
                                                                  {"never", BlankBefore::kNever}};
  read.blank = character_of(fields, "replacement");
  const std::string scheme = fields.text("prepend_scheme", "always");
  const auto found = schemes.find(scheme);
  if (found == schemes.end())
    fields.refuse("prepend_scheme",
                  "is " + shown(json(scheme)) + "; allowed: always, first, never");
  read.blank_before = found->second;
  if (fields.find("add_prefix_space") != nullptr && !fields.boolean("add_prefix_space", true) &&
      read.blank_before != BlankBefore::kNever)
    fields.refuse("add_prefix_space", "is false, but prepend_scheme is " + scheme);
  if (fields.find("str_rep") != nullptr) fields.text("str_rep");
  if (fields.find("split") == nullptr || fields.boolean("split", true))
    read.scanner = scanner_before(read.blank);
}

struct PreTokenizerKind {
  PreTokenizerReader read;
  bool must_be_last;
};

const std::map<std::string_view, PreTokenizerKind>& pre_tokenizer_kinds() {
  static const std::map<std::string_view, PreTokenizerKind> by_type = {
      {"Split", {read_split, false}},
      {"Digits", {read_digits, false}},
      {"ByteLevel", {read_byte_level_pieces, true}},
      {"Metaspace", {read_metaspace, true}}};
  return by_type;
}

constexpr Component kDecoder{"decoder", "decoder", "decoders"};

// Reads the steps of a decoder of characters, which must be in the order of DecoderSteps.
class DecoderReader {
 public:
  explicit DecoderReader(const Document& document) : document_(document) {}

  void add(const json& step) {
    Fields fields(step, kDecoder.place, document_);
    const std::string& type = fields.text("type");
    if (type == "Replace") {
      reach(Stage::kReplace, type);
      read_.replacements.push_back(replacement_of(fields, kDecoder, document_));
    } else if (type == "ByteFallback") {
      reach(Stage::kByteFallback, type);
      read_.byte_fallback = true;
    } else if (type == "Fuse") {
      reach(Stage::kFuse, type);
    } else if (type == "Strip") {
      if (stage_ != Stage::kFuse) refuse_order(type);
      reach(Stage::kStrip, type);
      read_strip(fields);
    } else {
      refuse_kind(kDecoder.name, type, kDecoders, document_);
    }
  }

  DecoderSteps& steps() { return read_; }

 private:
  enum class Stage { kReplace, kByteFallback, kFuse, kStrip };

  void reach(Stage stage, const std::string& type) {
    if (stage < stage_ || (stage == stage_ && stage == Stage::kStrip)) refuse_order(type);
    stage_ = stage;
  }

  [[noreturn]] void refuse_order(const std::string& type) const {
    refuse_unsupported("has a decoder with " + type + " in an unusual place", document_);
  }

  void read_strip(Fields& fields) {
    read_.stripped = character_of(fields, "content");
    read_.most_stripped = static_cast<std::size_t>(fields.integer("start", 0, INT64_MAX));
    if (fields.integer("stop", 0, INT64_MAX) > 0)
      refuse_unsupported("has a decoder that strips the end of a text", document_);
  }

  const Document& document_;
  DecoderSteps read_;
  Stage stage_ = Stage::kReplace;
};

}  // namespace

Normalizer read_normalizer(const json* value, const Document& document) {
  std::vector<NormalizerStep> steps;
  for (const json* step : steps_of(value, kNormalizer, document)) {
    Fields fields(*step, kNormalizer.place, document);
    const std::string& type = fields.text("type");
    const auto reader = normalizer_readers().find(type);
    if (reader == normalizer_readers().end())
      refuse_kind(kNormalizer.name, type, kNormalizers, document);
    steps.push_back(reader->second(fields, document));
  }
  return Normalizer(std::move(steps));
}

PreTokenizer read_pre_tokenizer(const json* value, const Document& document) {
  PreTokenizer read;
  const std::vector<const json*> steps = steps_of(value, kPreTokenizer, document);
  for (const json* step : steps) {
    Fields fields(*step, kPreTokenizer.place, document);
    const std::string& type = fields.text("type");
    const auto kind = pre_tokenizer_kinds().find(type);
    if (kind == pre_tokenizer_kinds().end())
      refuse_kind(kPreTokenizer.name, type, kPreTokenizers, document);
    if (kind->second.must_be_last && step != steps.back())
      refuse_unsupported("has a pre-tokenizer after " + type, document);
    kind->second.read(fields, read, document);
  }
  return read;
}

DecoderSteps read_decoder(const json* value, const Document& document) {
  if (value == nullptr) refuse_unsupported("has no decoder", document);
  const std::vector<const json*> steps = steps_of(value, kDecoder, document);
  DecoderReader reader(document);
  if (steps.size() == 1) {
    Fields fields(*steps[0], kDecoder.place, document);
    if (fields.text("type") == "ByteLevel") {
      check_byte_level(fields);
      reader.steps().byte_level = true;
      return reader.steps();
    }
  }
  for (const json* step : steps) reader.add(*step);
  const auto of = [](const Replacement& step) { return lengthening(step); };
  require_short(lengthened(1, reader.steps().replacements, of), kDecoder, document);
  return reader.steps();
}

void check_together(const Normalizer& normalizer, const PreTokenizer& pre_tokenizer,
                    const Document& document) {
  const auto of = [](const NormalizerStep& step) {
    return std::visit([](const auto& known) { return lengthening(known); }, step);
  };
  require_short(lengthened(pre_tokenizer.blank.size(), normalizer.steps(), of), kNormalizer,
                document);
  // The package treats whatever comes from the beginning of the original text as the first piece.
  if (pre_tokenizer.blank_before == BlankBefore::kFirst && !normalizer.steps().empty())
    refuse_unsupported("has a normalizer beside a Metaspace with prepend_scheme \"first\"",
                       document);
}

}  // namespace skipdec::runtime
