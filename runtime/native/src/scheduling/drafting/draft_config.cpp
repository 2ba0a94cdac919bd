#include "scheduling/drafting/draft_config.h"

#include <algorithm>
#include <array>

#include "errors.h"
#include "json/shown.h"
#include "texts.h"
#include "tokenizer/text/utf8.h"

namespace skipdec::runtime {

namespace {

constexpr std::size_t kMostLength = 200;   // characters; the longest sensible text has 60
constexpr std::size_t kMostProblems = 10;  // listed

// In the order in which messages list them.
constexpr std::array<DraftPartKind, 5> kKinds{{
    {"own", "own", false},
    {"lookup", "lookup", false},
    {"ends", "ends:N", true},
    {"first", "first:N", true},
    {"trained", "trained", true},
}};

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  for (;;) {
    const std::size_t end = text.find(separator);
    pieces.push_back(trimmed(text.substr(0, end)));
    if (end == std::string_view::npos) return pieces;
    text.remove_prefix(end + 1);
  }
}

// Reads a value into its field; returns false if it is not allowed.
struct Key {
  std::string_view name;
  bool (*read)(std::string_view text, DraftConfig& config);
  std::string allowed;
};

bool read_switch(std::string_view text, bool& value) {
  if (text != "yes" && text != "no") return false;
  value = text == "yes";
  return true;
}

const std::array<Key, 3>& keys() {
  static const std::array<Key, 3> known{{
      {"tokens",
       [](std::string_view text, DraftConfig& config) {
         config.tokens = number_in(text).value_or(0);
         return config.tokens >= 1 && config.tokens <= constants::kDraftMaxTokens;
       },
       "1 to " + std::to_string(constants::kDraftMaxTokens)},
      {"adapt",
       [](std::string_view text, DraftConfig& config) { return read_switch(text, config.adapt); },
       "yes or no"},
      {"exact",
       [](std::string_view text, DraftConfig& config) { return read_switch(text, config.exact); },
       "yes or no"},
  }};
  return known;
}

// Reads a text and collects its problems.
class DraftReading {
 public:
  void read_part(std::string_view text, DraftConfig& config) {
    const std::size_t colon = text.find(':');
    const std::string_view name = trimmed(text.substr(0, colon));
    const auto* const kind = std::find_if(
        kKinds.begin(), kKinds.end(), [&](const DraftPartKind& each) { return each.name == name; });
    if (kind == kKinds.end()) {
      const bool stands_alone = name == "off" || name == "auto";
      problems.push_back(
          shown_text(text) + (stands_alone ? " stands alone" : " is unknown") + "; allowed: " +
          joined(kKinds, [](const DraftPartKind& each) { return each.form; }) + ", off or auto");
      return;
    }
    if (kind->form == kind->name) {
      if (colon != std::string_view::npos) {
        problems.push_back(shown_text(text) + " has a number; write " + std::string(kind->form));
      }
      config.parts.push_back({kind, std::nullopt, {}});
      return;
    }
    const std::string_view digits =
        colon == std::string_view::npos ? "" : trimmed(text.substr(colon + 1));
    const auto number = number_in(digits);
    if (number && *number > 0) {
      config.parts.push_back({kind, number, {}});
    } else {
      problems.push_back(shown_text(text) + " needs a number of layers, e.g. " + std::string(name) +
                         ":3");
    }
  }

  // Refuses a part that is named twice or would never be asked.
  void check_order(const std::vector<DraftPart>& parts) {
    for (auto part = parts.begin(); part != parts.end(); ++part) {
      const bool is_repeated = std::any_of(
          parts.begin(), part, [&](const DraftPart& other) { return other.kind == part->kind; });
      if (is_repeated) {
        problems.push_back(shown_text(part->kind->name) + " is named twice; name it once");
      } else if (part->kind->runs_layers && part + 1 != parts.end()) {
        problems.push_back(shown_text(part->text()) +
                           " always proposes, so what follows it is never asked; put it last, and "
                           "only one such part");
      }
    }
  }

  void read_pair(std::string_view pair, DraftConfig& config) {
    const std::size_t equals = std::min(pair.find('='), pair.size());
    const std::string_view name = trimmed(pair.substr(0, equals));
    const std::string_view text = trimmed(pair.substr(std::min(equals + 1, pair.size())));
    const auto* const key = std::find_if(keys().begin(), keys().end(),
                                         [&](const Key& each) { return each.name == name; });
    if (key == keys().end()) {
      problems.push_back(shown_text(name) + " is unknown; allowed: " +
                         joined(keys(), [](const Key& each) { return each.name; }));
    } else if (std::find(given_.begin(), given_.end(), name) != given_.end()) {
      problems.push_back(std::string(name) + " is given twice; give it once");
    } else {
      given_.push_back(name);
      if (!key->read(text, config)) {
        problems.push_back(std::string(name) + " is " + shown_text(text) +
                           "; allowed: " + key->allowed);
      }
    }
  }

  std::vector<std::string> problems;

 private:
  std::vector<std::string_view> given_;
};

}  // namespace

bool is_off(std::string_view text) { return lowered(trimmed(text)) == "off"; }

bool is_auto(std::string_view text) { return lowered(trimmed(text)) == "auto"; }

std::string DraftPart::text() const {
  const std::string name(kind->name);
  return number ? name + ":" + std::to_string(*number) : name;
}

std::optional<DraftConfig> DraftConfig::parse(std::string_view text) {
  const std::size_t length = num_characters(text);
  if (length > kMostLength) {
    throw Error(Status::kUsage, "draft",
                "has " + grouped(static_cast<std::int64_t>(length)) +
                    " characters; allowed: " + std::to_string(kMostLength));
  }
  const std::string lower = lowered(text);
  const std::vector<std::string_view> pieces = split(lower, ',');
  if (is_off(lower)) return std::nullopt;
  DraftConfig config;
  DraftReading reading;
  for (const std::string_view part : split(pieces.front(), '+')) reading.read_part(part, config);
  reading.check_order(config.parts);
  for (std::size_t index = 1; index < pieces.size(); ++index) {
    reading.read_pair(pieces[index], config);
  }
  if (reading.problems.empty()) return config;
  reading.problems.resize(std::min(reading.problems.size(), kMostProblems));
  throw Error(Status::kUsage, "draft", reading.problems);
}

std::string DraftConfig::text() const {
  std::string text;
  for (const DraftPart& part : parts) text.append(text.empty() ? "" : "+").append(part.text());
  if (tokens != constants::kDraftMaxTokens) text += ",tokens=" + std::to_string(tokens);
  if (!adapt) text += ",adapt=no";
  if (!exact) text += ",exact=no";
  return text;
}

bool DraftConfig::runs_layers() const {
  return std::any_of(parts.begin(), parts.end(),
                     [](const DraftPart& part) { return part.kind->runs_layers; });
}

bool DraftConfig::uses_draft_layer() const {
  return std::any_of(parts.begin(), parts.end(),
                     [](const DraftPart& part) { return part.kind->name == "trained"; });
}

}  // namespace skipdec::runtime
