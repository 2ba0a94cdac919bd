#include "tokenizer/file/model_events.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "json/fields.h"
#include "tokenizer/file/parts.h"

namespace skipdec::runtime {
namespace {

constexpr std::size_t kMaxTreeValues = std::size_t{1} << 20;

}  // namespace

nlohmann::json ModelEvents::take_tree() { return tree_.take(); }

JsonEvents& ModelEvents::tree() {
  if (place_ == Place::kVocabulary) refuse("model.vocab is no object of ids by token");
  if (place_ == Place::kMerges || place_ == Place::kPair)
    refuse("model.merges is no list of pairs of tokens");
  if (++tree_values_ > kMaxTreeValues)
    refuse("holds more than " + std::to_string(kMaxTreeValues) + " values beside the model's");
  place_ = Place::kTree;  // vocabulary or merges of another kind of model
  return tree_;
}

void ModelEvents::on_scalar(const nlohmann::json& scalar) {
  if (place_ != Place::kVocabulary || !scalar.is_number_unsigned()) {
    tree().on_scalar(scalar);
    return;
  }
  const auto value = scalar.get<std::uint64_t>();
  if (value >= kMaxTokens)
    refuse("model.vocab has the id " + std::to_string(value) + "; allowed: below " +
           std::to_string(kMaxTokens));
  if (token_.size() > kMaxTokenBytes)
    refuse("model.vocab has a token of " + std::to_string(token_.size()) +
           " bytes; allowed: " + std::to_string(kMaxTokenBytes));
  vocabulary_.add(token_, static_cast<std::uint32_t>(value));
}

void ModelEvents::on_string(std::string& value) {
  if (place_ == Place::kPair) {
    if (++in_pair_ > 2) refuse("model.merges has more than two tokens in a pair");
    merges_.add(value);
  } else if (place_ == Place::kMerges) {
    add_merge(value);
  } else {
    tree().on_string(value);
  }
}

void ModelEvents::add_merge(std::string& value) {
  if (merges_are_pairs_) refuse("model.merges has pairs and strings");
  if (value.rfind("#version", 0) == 0) return;
  const std::size_t blank = value.find(' ');
  if (blank == std::string::npos || value.find(' ', blank + 1) != std::string::npos)
    refuse("model.merges has an entry that is not two tokens with a blank between: " +
           shown(nlohmann::json(value)));
  merges_.add(std::string_view(value).substr(0, blank));
  merges_.add(std::string_view(value).substr(blank + 1));
}

void ModelEvents::on_key(std::string& value) {
  if (place_ == Place::kVocabulary) {
    token_.swap(value);
    return;
  }
  if (depth_ == 1) in_model_ = value == "model";
  if (depth_ == 2 && in_model_) {
    if (value == "vocab") place_ = Place::kBeforeVocabulary;
    if (value == "merges") place_ = Place::kBeforeMerges;
  }
  tree_.on_key(value);
}

void ModelEvents::on_start(bool is_object) {
  if (is_object && place_ == Place::kBeforeVocabulary) {
    place_ = Place::kVocabulary;
    has_vocabulary_ = true;
  } else if (!is_object && place_ == Place::kBeforeMerges) {
    place_ = Place::kMerges;
    has_merges_ = true;
  } else if (!is_object && place_ == Place::kMerges) {
    if (merges_.size() > 0 && !merges_are_pairs_) refuse("model.merges has pairs and strings");
    merges_are_pairs_ = true;
    place_ = Place::kPair;
    in_pair_ = 0;
  } else {
    tree().on_start(is_object);
    ++depth_;
  }
}

void ModelEvents::on_end(bool is_object) {
  if (place_ == Place::kPair) {
    if (in_pair_ != 2) refuse("model.merges has a pair of one token or none");
    place_ = Place::kMerges;
  } else if (place_ == Place::kVocabulary || place_ == Place::kMerges) {
    place_ = Place::kTree;
    tree_.on_scalar(nullptr);
  } else {
    --depth_;
    tree_.on_end(is_object);
  }
}

}  // namespace skipdec::runtime
