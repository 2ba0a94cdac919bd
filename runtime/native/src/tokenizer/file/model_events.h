// Reads tokens and merges, the long parts of a tokenizer.json, without building a tree for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "json/events.h"
#include "json/tree.h"
#include "tokenizer/model/vocabulary.h"

namespace skipdec::runtime {

// In the tree, `model.vocab` and `model.merges` are null. Their contents are checked, except that
// merges may name unknown tokens.
class ModelEvents final : public JsonEvents {
 public:
  // ``document``, which errors name, must outlive this object.
  explicit ModelEvents(const Document& document) : document_(document), tree_(document) {}

  nlohmann::json take_tree();
  bool has_model() const { return has_vocabulary_ && has_merges_; }
  Vocabulary& vocabulary() { return vocabulary_; }  // the caller must finish it
  // Two texts per merge, in order of rank.
  const TextList& merges() const { return merges_; }

  void on_scalar(const nlohmann::json& scalar) override;
  void on_string(std::string& value) override;
  void on_key(std::string& value) override;
  void on_start(bool is_object) override;
  void on_end(bool is_object) override;

 private:
  enum class Place { kTree, kBeforeVocabulary, kVocabulary, kBeforeMerges, kMerges, kPair };

  [[noreturn]] void refuse(const std::string& problem) const { document_.refuse("", problem); }
  // Returns the tree, to which the next value belongs.
  JsonEvents& tree();
  void add_merge(std::string& value);

  const Document& document_;
  JsonTree tree_;
  Place place_ = Place::kTree;
  std::size_t depth_ = 0;  // nesting of the next value in the tree
  std::size_t tree_values_ = 0;
  bool in_model_ = false;
  std::string token_;  // the last key
  Vocabulary vocabulary_;
  bool has_vocabulary_ = false;
  TextList merges_;
  bool has_merges_ = false;
  bool merges_are_pairs_ = false;
  std::size_t in_pair_ = 0;
};

}  // namespace skipdec::runtime
