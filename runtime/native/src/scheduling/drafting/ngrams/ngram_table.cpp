#include "scheduling/drafting/ngrams/ngram_table.h"

#include <algorithm>
#include <array>
#include <utility>

namespace skipdec::runtime {

using constants::kDraftNgramTokens;

namespace {

constexpr std::int64_t kShares = 4;  // classes of a follower's share

}  // namespace

void NGramTable::count(const TokenSpan& tokens, std::size_t start) {
  for (std::size_t index = start; index < tokens.size(); ++index) {
    const auto before = static_cast<std::int64_t>(index);
    for (std::int64_t length = 1; length <= std::min(kDraftNgramTokens, before); ++length) {
      const NGram key = NGram::before(tokens.data() + index, length);
      const auto found = followers_.find(key);
      if (found != followers_.end()) {
        count(found->second, tokens[index]);
        continue;
      }
      if (size() >= max_keys_) {
        followers_.erase(order_.front());
        order_.pop_front();
      }
      Followers made{{{tokens[index], 1}}, 0, 1};
      order_.push_back(key);  // if memory runs out, at most an unused key in ``order_`` is left
      followers_.emplace(key, std::move(made));
    }
  }
}

void NGramTable::count(Followers& followers, std::int64_t token) {
  std::vector<Follower>& all = followers.all;
  ++followers.total;
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const Follower& each) { return each.token == token; });
  if (found == all.end()) {
    if (static_cast<std::int64_t>(all.size()) < constants::kDraftFollowers) {
      all.push_back({token, 1});
    }
    return;
  }
  ++found->count;
  if (found->count > all[followers.best].count) {
    followers.best = static_cast<std::size_t>(found - all.begin());
  }
}

void NGramTable::propose(const TokenSpan& tokens, std::int64_t most, Guesses& proposed) const {
  // The last tokens of the text, followed by the proposals.
  std::array<std::int64_t, kDraftNgramTokens + constants::kDraftMaxTokens> tail{};
  const auto known = std::min(kDraftNgramTokens, static_cast<std::int64_t>(tokens.size()));
  std::copy(tokens.end() - known, tokens.end(), tail.begin());
  proposed.clear();
  most = std::min(most, constants::kDraftMaxTokens);
  for (std::int64_t end = known; end < known + most; ++end) {
    const Match found = match(tail.data() + end, std::min(kDraftNgramTokens, end));
    if (found.followers == nullptr) return;
    const Follower& best = found.followers->all[found.followers->best];
    const std::int64_t share = kShares * best.count / (found.followers->total + 1);
    proposed.add(best.token, static_cast<std::size_t>(kShares * (found.length - 1) + share));
    tail[static_cast<std::size_t>(end)] = best.token;
  }
}

NGramTable::Match NGramTable::match(const std::int64_t* end, std::int64_t length) const {
  for (; length > 0; --length) {
    const Followers* found = followers_of(NGram::before(end, length));
    if (found != nullptr) return {found, length};
  }
  return {};
}

const Followers* NGramTable::followers_of(const NGram& key) const {
  const auto at = followers_.find(key);
  const Followers* counted = at == followers_.end() ? nullptr : &at->second;
  if (known_ == nullptr) return counted;
  const auto found = known_->find(key);
  if (found == known_->end()) return counted;
  return counted == nullptr || found->second.total > counted->total ? &found->second : counted;
}

std::vector<double> NGramTable::priors() {
  std::vector<double> found(static_cast<std::size_t>(kShares * kDraftNgramTokens));
  for (std::size_t one = 0; one < found.size(); ++one) {
    found[one] = (static_cast<double>(one % kShares) + 0.5) / kShares;
  }
  return found;
}

NGramTable& NGramTables::of(const std::string& client) {
  if (!is_per_client_) return shared_;
  const auto found = by_client_.find(client);
  if (found != by_client_.end()) {
    tables_.splice(tables_.end(), tables_, found->second);
    return found->second->second;
  }
  if (static_cast<std::int64_t>(tables_.size()) >= constants::kDraftClients) {
    by_client_.erase(tables_.front().first);
    tables_.pop_front();
  }
  tables_.emplace_back(client, NGramTable(constants::kDraftClientKeys, known_));
  by_client_[client] = std::prev(tables_.end());
  return tables_.back().second;
}

}  // namespace skipdec::runtime
