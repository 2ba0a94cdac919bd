// NGramTable: counts the tokens that followed n-grams of texts.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "scheduling/drafting/ngrams/guesses.h"
#include "scheduling/drafting/ngrams/ngrams.h"

namespace skipdec::runtime {

struct Follower {
  std::int64_t token, count;
};

// The tokens that followed one n-gram.
struct Followers {
  std::vector<Follower> all;
  std::size_t best = 0;    // a place in ``all``
  std::int64_t total = 0;  // with those that are not in ``all``
};

// What most often followed n-grams of texts that the model wrote before it was exported.
using KnownNGrams = std::unordered_map<NGram, Followers, NGramHash>;

// The tokens that followed the last 1 to 5 tokens of texts, counted over all texts it was told.
//
// Worked: after "a b c a b d a b d" the table proposes "d" behind "a b": it followed twice, "c"
// once. Of equal counts the one that reached it first is proposed.
//
// It holds up to ``max_keys`` n-grams; a new one beyond evicts the one inserted first. Each holds
// up to 16 followers; further ones are not counted. ``known`` n-grams, which the bundle has, are
// never evicted nor counted further; where texts have the same one, what followed it more often is
// proposed.
class NGramTable {
 public:
  explicit NGramTable(std::int64_t max_keys = constants::kDraftKeys,
                      std::shared_ptr<const KnownNGrams> known = nullptr)
      : max_keys_(max_keys), known_(std::move(known)) {}

  // The number of n-grams of texts.
  std::int64_t size() const { return static_cast<std::int64_t>(followers_.size()); }
  // Counts each token from ``start`` on as a follower of the tokens before it.
  void count(const TokenSpan& tokens, std::size_t start);
  // Writes up to ``most`` tokens that may follow ``tokens`` to ``proposed``: those of the longest
  // n-gram that is known. The evidence of a guess is the length of its n-gram, and which share of
  // the tokens that followed it was this one. Worked: "d" followed "a b" twice, another token once;
  // of one token more than have been seen, 2 / 4 is in the third quarter, so the class is
  // 4 · (2 − 1) + 2 = 6.
  void propose(const TokenSpan& tokens, std::int64_t most, Guesses& proposed) const;
  // Returns the shares that are expected to hold, by class of evidence.
  static std::vector<double> priors();

 private:
  // A table's entry for the longest n-gram that is known, and the n-gram's length.
  struct Match {
    const Followers* followers = nullptr;
    std::int64_t length = 0;
  };

  static void count(Followers& followers, std::int64_t token);
  // Returns the followers of the most of the ``length`` tokens before ``end``; none if none is
  // known.
  Match match(const std::int64_t* end, std::int64_t length) const;

  // Returns what followed ``key``, or nullptr.
  const Followers* behind(const NGram& key) const;

  std::int64_t max_keys_;
  std::shared_ptr<const KnownNGrams> known_;  // nullptr: none
  std::unordered_map<NGram, Followers, NGramHash> followers_;
  std::deque<NGram> order_;  // in which keys were inserted
};

// The table that all clients share, or one for each of the 32 clients that used theirs last.
class NGramTables {
 public:
  // ``known``: what every table begins with; nullptr: nothing.
  explicit NGramTables(bool per_client, std::shared_ptr<const KnownNGrams> known = nullptr)
      : is_per_client_(per_client), known_(std::move(known)) {}

  // Returns the client's table, valid until the next call.
  NGramTable& of(const std::string& client);

 private:
  using Tables = std::list<std::pair<std::string, NGramTable>>;

  bool is_per_client_;
  std::shared_ptr<const KnownNGrams> known_;
  NGramTable shared_{constants::kDraftKeys, known_};
  Tables tables_;  // least recently used first
  std::unordered_map<std::string, Tables::iterator> by_client_;
};

}  // namespace skipdec::runtime
