#include "scheduling/drafting/ngrams/known_ngrams.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "json/tree.h"
#include "texts.h"

namespace skipdec::runtime {
namespace {

using nlohmann::json;

constexpr auto kMost = static_cast<std::size_t>(constants::kDraftKnownNgrams);

struct Entry {
  NGram tokens;
  Followers followers;
};

// Returns a row of the file, or nothing if it is not valid.
std::optional<Entry> entry_of(const json& row, std::int64_t vocab_size) {
  constexpr auto kLongest = static_cast<std::size_t>(constants::kDraftKnownTokens);
  if (!row.is_array() || row.size() < 4 || row.size() > kLongest + 3) return std::nullopt;
  std::vector<std::int64_t> values;
  for (const json& value : row) {
    if (!value.is_number_integer() || value < 0 || value > INT32_MAX) return std::nullopt;
    values.push_back(value.get<std::int64_t>());
  }
  const std::int64_t total = values.back(), count = values[values.size() - 2];
  values.resize(values.size() - 2);
  for (const std::int64_t token : values) {
    if (token >= vocab_size) return std::nullopt;
  }
  if (count < 1 || count > total) return std::nullopt;
  const auto length = static_cast<std::int64_t>(values.size()) - 1;
  return Entry{NGram::before(values.data() + length, length), {{{values.back(), count}}, 0, total}};
}

}  // namespace

KnownNGrams parse_ngrams(std::string_view text, std::int64_t vocab_size, const Document& document) {
  const json value = parse_json(text, document);
  const bool has_list = value.is_object() && value.contains("ngrams") &&
                        value["ngrams"].is_array() && value["ngrams"].size() <= kMost;
  if (!has_list)
    document.refuse(
        "", "has no list ngrams of up to " + grouped(constants::kDraftKnownNgrams) + " n-grams");
  KnownNGrams known;
  std::size_t index = 0;
  for (const json& row : value["ngrams"]) {
    std::optional<Entry> entry = entry_of(row, vocab_size);
    if (!entry || !known.emplace(entry->tokens, std::move(entry->followers)).second)
      document.refuse("", "ngrams." + std::to_string(index) + " is " + shown(row) +
                              "; allowed: 1 to " + std::to_string(constants::kDraftKnownTokens) +
                              " tokens below " + grouped(vocab_size) +
                              " that no other has, the next one, its count and that of all");
    ++index;
  }
  return known;
}

std::shared_ptr<const KnownNGrams> known_ngrams(const Bundle& bundle) {
  const std::optional<std::string>& name = bundle.manifest().ngrams;
  if (!name) return nullptr;
  const Document document{Status::kBundle, bundle.path() + "/" + *name, "export the model again"};
  return std::make_shared<const KnownNGrams>(
      parse_ngrams(bundle.read(*name, constants::kMaxNgramsBytes),
                   bundle.manifest().model.vocab_size, document));
}

}  // namespace skipdec::runtime
