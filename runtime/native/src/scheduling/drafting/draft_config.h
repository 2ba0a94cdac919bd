// DraftConfig: which drafters propose tokens, and how many, read from a text such as "own".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "constants.h"

namespace skipdec::runtime {

// A kind of drafter: its form in a text, and whether it runs layers of the model.
struct DraftPartKind {
  std::string_view name;
  std::string_view form;  // "name:N" where it takes a number
  bool runs_layers;
};

// One drafter of a configuration, with the number of layers where it takes one.
struct DraftPart {
  const DraftPartKind* kind = nullptr;
  std::optional<std::int64_t> number;
  std::vector<std::int64_t> layers;  // that it runs, once `resolve_draft` has chosen them

  std::string text() const;
};

// Drafters in the order in which they are asked, and the limits of what they propose.
struct DraftConfig {
  std::vector<DraftPart> parts;
  std::int64_t tokens = constants::kDraftMaxTokens;  // most drafted tokens of a row in one pass
  bool adapt = true;  // measured costs and acceptance choose how many, and whether there are any
  bool exact = true;  // refuses engines whose results may depend on how many tokens a pass has

  // Reads PART[+PART…][,KEY=VALUE…]; "off" means no drafts. Throws Error (kUsage) with all problems
  // of the text, in the words of Python's parse_draft without its "did you mean …?".
  static std::optional<DraftConfig> parse(std::string_view text);
  // Returns true if layers draft, those of the model or the bundle's own.
  bool runs_layers() const;
  // Returns true if the bundle's own draft layer drafts, which has keys and values of its own.
  bool uses_draft_layer() const;
};

// Return true for "off" and for "auto", which `parse` does not read, with space around them or in
// capitals.
bool is_off(std::string_view text);
bool is_auto(std::string_view text);

}  // namespace skipdec::runtime
