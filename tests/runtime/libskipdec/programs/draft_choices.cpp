// Drafts known texts with the drafters and the policy, and writes how many passes there were, and
// how many tokens were drafted and accepted in them.
//
//     draft_choices PART... < TEXTS
//
// PART: own, lookup, or the cost of a step of a drafter of layers, which is wrong about every third
// token ID. TEXTS: the costs of passes over 1 to 8 tokens; then for each text the numbers of tokens
// in its prompt and completion, and these tokens.
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "scheduling/drafting/draft_policy.h"
#include "scheduling/drafting/ngrams/lookup_index.h"
#include "scheduling/drafting/ngrams/ngram_table.h"

namespace {

using namespace skipdec::runtime;

class Replay {
 public:
  Replay(const std::vector<std::string>& parts, const std::vector<double>& costs) : costs_(costs) {
    constexpr int kMeasured = 15;
    for (const std::string& part : parts) {
      const bool is_own = part == "own", is_lookup = part == "lookup";
      kinds_.push_back(is_own ? kOwn : is_lookup ? kLookup : kLayers);
      steps_.push_back(kinds_.back() == kLayers ? std::stod(part) : 0);
      std::vector<double> priors{0.5};
      if (is_own) priors = NGramTable::priors();
      if (is_lookup) priors = LookupIndex::priors();
      if (kinds_.back() == kLayers) priors = layer_priors();
      policy_.add_source(SourceAcceptance(part, priors, steps_.back()));
    }
    for (int time = 0; time < kMeasured; ++time) {
      for (std::size_t tokens = 1; tokens <= costs.size(); ++tokens) {
        known_.add_pass(1, static_cast<std::int64_t>(tokens), costs[tokens - 1]);
      }
      for (std::size_t part = 0; part < parts.size(); ++part) {
        if (kinds_[part] == kLayers) known_.add_draft(parts[part], 1, steps_[part]);
      }
    }
    known_.add_pass(1, 1, costs.front());
  }

  void run(const TokenSpan& prompt, const TokenSpan& completion) {
    TokenSpan tokens = prompt;
    tokens.push_back(completion.front());
    table_.count(tokens, prompt.size());
    LookupIndex index;
    std::vector<RowResults> results(kinds_.size());
    std::size_t written = 1;
    while (written < completion.size()) {
      const std::size_t accepted = pass(tokens, completion, written, index, results);
      const std::size_t before = tokens.size();
      const auto next = completion.begin() + static_cast<std::ptrdiff_t>(written);
      tokens.insert(tokens.end(), next, next + static_cast<std::ptrdiff_t>(accepted));
      table_.count(tokens, before);
      written += accepted;
    }
  }

  std::size_t passes = 0, drafted = 0, accepted = 0;

 private:
  enum Kind { kOwn, kLookup, kLayers };

  // Runs a pass after ``tokens``, and returns how many tokens it writes.
  std::size_t pass(const TokenSpan& tokens, const TokenSpan& completion, std::size_t written,
                   LookupIndex& index, std::vector<RowResults>& results) {
    ++passes;
    if (policy_.pauses()) return 1;
    if (known_.wants_plain(1)) {
      known_.add_pass(1, 1, costs_.front());
      return 1;
    }
    const std::size_t left = completion.size() - written;
    const auto most = std::min<std::int64_t>(7, static_cast<std::int64_t>(left) - 1);
    std::vector<Guesses> proposed(kinds_.size());
    std::vector<RowOffers> offers(1, RowOffers(kinds_.size()));
    for (std::size_t part = 0; most > 0 && part < kinds_.size(); ++part) {
      Guesses& guesses = proposed[part];
      if (kinds_[part] == kOwn) table_.propose(tokens, most, guesses);
      if (kinds_[part] == kLookup) index.propose(tokens, most, guesses);
      offers.front()[part] = {guesses.evidence, &results[part]};
      if (kinds_[part] != kLayers) continue;
      offers.front()[part].evidence.assign(static_cast<std::size_t>(most), kUnknown);
    }
    if (most <= 0) {
      policy_.count_pass(1, 1, costs_.front());
      return 1;
    }
    const DraftChoice choice = policy_.choose(offers, 1);
    Guesses fed;
    double seconds = 0;
    if (choice.count > 0) {
      const std::size_t source = *choice.sources.front();
      if (kinds_[source] == kLayers) {
        fed = draft(source, completion.begin() + static_cast<std::ptrdiff_t>(written), most);
        seconds = steps_[source] * static_cast<double>(fed.tokens.size());
        fed.shorten(policy_.worth_checking(source, {fed}, 1));
      } else {
        fed = proposed[source];
        fed.shorten(static_cast<std::size_t>(choice.count));
      }
    }
    seconds = costs_[fed.tokens.size()] + seconds;
    std::size_t held = 0;
    while (held < fed.tokens.size() && fed.tokens[held] == completion[written + held]) ++held;
    if (!fed.tokens.empty()) {
      const std::size_t source = *choice.sources.front();
      const bool is_wrong = held < fed.tokens.size();
      policy_.source(source).add(fed.evidence, held + (is_wrong ? 1 : 0), held, results[source]);
    }
    policy_.count_pass(1, static_cast<std::int64_t>(held) + 1, seconds);
    drafted += fed.tokens.size();
    accepted += held;
    return held + 1;
  }

  // Drafts as many tokens as pay, up to ``most``, of which every third ID is wrong.
  Guesses draft(std::size_t source, TokenSpan::const_iterator following, std::int64_t most) const {
    Guesses drafted;
    do {
      const std::int64_t right = *following++;
      const auto confidence = static_cast<std::size_t>(1 + right % 8);
      drafted.add(right % 3 == 0 ? right + 1 : right, confidence);
    } while (static_cast<std::int64_t>(drafted.tokens.size()) < most &&
             policy_.goes_on(source, {drafted}, 1));
    return drafted;
  }

  std::vector<double> costs_, steps_;
  std::vector<Kind> kinds_;
  PassCosts known_;
  DraftPolicy policy_{known_};
  NGramTable table_;
};

}  // namespace

int main(int argc, char** argv) {
  std::vector<double> costs(8);
  for (double& cost : costs) std::cin >> cost;
  Replay replay(std::vector<std::string>(argv + 1, argv + argc), costs);
  std::size_t prompt_size = 0, size = 0;
  while (std::cin >> prompt_size >> size) {
    TokenSpan prompt(prompt_size), completion(size);
    for (TokenSpan* const tokens : {&prompt, &completion}) {
      for (std::int64_t& token : *tokens) std::cin >> token;
    }
    replay.run(prompt, completion);
    std::cout << replay.passes << ' ' << replay.drafted << ' ' << replay.accepted << '\n';
  }
}
