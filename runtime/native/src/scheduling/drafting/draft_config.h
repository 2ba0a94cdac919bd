// DraftConfig: which drafters propose tokens, and how many; parsed from a text such as "own".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "constants.h"

namespace skipdec::runtime {

// A kind of drafter: its text form, and whether it runs layers of the model.
struct DraftPartKind {
  std::string_view name;
  std::string_view form;  // "name:N" if it takes a number
  bool runs_layers;
};

// One drafter of a configuration, with the number of layers if it takes one.
struct DraftPart {
  const DraftPartKind* kind = nullptr;
  std::optional<std::int64_t> number;
  std::vector<std::int64_t> layers;  // which it runs, once `resolve_draft` has chosen them

  std::string text() const;
};

// Drafters in the order in which they are asked, and limits of their proposals.
struct DraftConfig {
  std::vector<DraftPart> parts;
  std::int64_t tokens = constants::kDraftMaxTokens;  // most drafted tokens per row and pass
  bool adapt = true;  // choose by measured costs and acceptance how many, if any
  bool exact = true;  // refuse engines whose results may depend on the tokens of a pass

  // Parses PART[+PART…][,KEY=VALUE…]; "off" means no drafts. Throws Error (kUsage) with all
  // problems of the text and the messages of Python's parse_draft without "did you mean …?".
  static std::optional<DraftConfig> parse(std::string_view text);
  // Returns the shortest text that `parse` reads as this configuration.
  std::string text() const;
  // Returns true if layers draft: the model's, or the bundle's draft layer.
  bool runs_layers() const;
  // Returns true if the bundle's draft layer drafts, which has keys and values of its own.
  bool uses_draft_layer() const;
};

// Return true for "off", and for "auto", which `parse` does not accept, regardless of case and
// surrounding spaces.
bool is_off(std::string_view text);
bool is_auto(std::string_view text);

}  // namespace skipdec::runtime
