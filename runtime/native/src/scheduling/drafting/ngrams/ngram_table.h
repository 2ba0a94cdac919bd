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
  std::int64_t total = 0;  // includes followers that are not in ``all``
};

// The most frequent followers of n-grams in texts that the model wrote before its export.
using KnownNGrams = std::unordered_map<NGram, Followers, NGramHash>;

// Counts of the tokens that followed 1 to 5 tokens, over all texts that the table has learned.
//
// Worked: after learning "a b c a b d a b d", the table proposes "d" after "a b", because "d"
// followed twice and "c" once. Of equal counts, the token that reached its count first is proposed.
//
// The table holds up to ``max_keys`` n-grams; beyond that, a new one evicts the oldest. Each holds
// up to 16 followers; further ones are not counted. The bundle's ``known`` n-grams are never
// evicted or counted further. If texts have the same n-gram, the entry with the higher count is
// used.
class NGramTable {
 public:
  explicit NGramTable(std::int64_t max_keys = constants::kDraftKeys,
                      std::shared_ptr<const KnownNGrams> known = nullptr)
      : max_keys_(max_keys), known_(std::move(known)) {}

  // The number of n-grams of texts.
  std::int64_t size() const { return static_cast<std::int64_t>(followers_.size()); }
  // Counts each token from ``start`` on as a follower of the tokens before it.
  void count(const TokenSpan& tokens, std::size_t start);
  // Writes up to ``most`` tokens that may follow ``tokens`` to ``proposed``, by the longest known
  // n-gram. The evidence for a guess is the length of its n-gram and the guess's share of the
  // tokens that followed it. Worked: "d" followed "a b" twice, and another token once. Of one token
  // more than were seen, its share 2 / 4 is in the third quarter, so the class is 4 · (2 − 1) + 2 =
  // 6.
  void propose(const TokenSpan& tokens, std::int64_t most, Guesses& proposed) const;
  // Returns the expected shares of guesses that hold, by class of evidence.
  static std::vector<double> priors();

 private:
  // The entry of the longest known n-gram, and the n-gram's length.
  struct Match {
    const Followers* followers = nullptr;
    std::int64_t length = 0;
  };

  static void count(Followers& followers, std::int64_t token);
  // Returns the followers of the longest known n-gram among the ``length`` tokens before ``end``,
  // if any.
  Match match(const std::int64_t* end, std::int64_t length) const;

  // Returns the followers of ``key``, or nullptr.
  const Followers* followers_of(const NGram& key) const;

  std::int64_t max_keys_;
  std::shared_ptr<const KnownNGrams> known_;  // nullptr: none
  std::unordered_map<NGram, Followers, NGramHash> followers_;
  std::deque<NGram> order_;  // keys in the order of insertion
};

// One table that all clients share, or one for each of the 32 most recent clients.
class NGramTables {
 public:
  // ``known``: the n-grams with which every table begins, or nullptr.
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
