#include "scheduling/drafting/draft_file.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "constants.h"
#include "files/digest.h"
#include "json/canonical.h"
#include "json/tree.h"
#include "scheduling/drafting/draft_config.h"

namespace skipdec::runtime {

namespace {

// Throws with the problems of a text that is not one of drafts.
void check_drafts(const std::string& text, const Document& document) {
  try {
    DraftConfig::parse(text);
  } catch (const Error& error) {
    const std::string message = error.what();  // "draft | …"
    document.refuse("draft", message.substr(message.find(" | ") + 3));
  }
}

}  // namespace

std::string recommended_draft(const Bundle& bundle) {
  const std::optional<std::string> content = bundle.read_draft();
  if (!content) return "own";
  const Document document{Status::kBundle, bundle.path() + "/" + std::string(constants::kDraftName),
                          "write it with 'skipdec draft set'"};
  JsonLimits limits;
  limits.remedy = document.remedy;
  const nlohmann::json value = parse_json(*content, document.subject, limits);
  Fields fields(value, "", document);
  if (fields.text("digest") != checked_digest(*content, document))
    fields.refuse("digest", "is not the file's own");
  require_canonical(*content, value, document);
  fields.integer("format", constants::kDraftFormat, constants::kDraftFormat);
  const std::string& draft = fields.text("draft");
  check_drafts(draft, document);
  return draft;
}

}  // namespace skipdec::runtime
