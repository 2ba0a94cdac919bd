#include "tokens/stopping.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "constants.h"
#include "errors.h"
#include "tokenizer/text/utf8.h"

namespace skipdec::runtime {

// Positions count bytes, while Python counts characters. In UTF-8 no character begins inside
// another, so containing, beginning and ending mean the same either way.

namespace {

// Returns the number of bytes of the first ``count`` characters of ``text``, or of all.
std::size_t bytes_of_characters(std::string_view text, std::size_t count) {
  for (std::size_t at = 0; at < text.size(); ++at)
    if (begins_character(text[at]) && count-- == 0) return at;
  return text.size();
}

}  // namespace

const char* name_of(FinishReason reason) {
  return constants::kFinishReasons.at(static_cast<std::size_t>(reason)).data();  // ends with a NUL
}

StopChecker::StopChecker(SamplingParams params, std::int64_t max_tokens,
                         std::vector<std::int64_t> end_token_ids, const Tokenizer* tokenizer)
    : tokenizer_(tokenizer),
      params_(std::move(params)),
      max_tokens_(max_tokens),
      end_token_ids_(std::move(end_token_ids)) {
  if (tokenizer != nullptr) decoder_.emplace(*tokenizer, params_.skip_special_tokens);
  for (const std::string& stop : params_.stop) {
    longest_stop_ = std::max(longest_stop_, stop.size());
    if (const auto token_id = tokenizer->special_id(stop)) stop_reasons_[*token_id] = stop;
  }
  for (const std::int64_t token_id : params_.stop_token_ids) stop_reasons_[token_id] = token_id;
}

std::string StopChecker::push(std::int64_t token_id) {
  if (finish_reason_) throw Error(Status::kInternal, "StopChecker", "the sequence has ended");
  ++num_tokens_;
  const bool may_stop = num_tokens_ > params_.min_tokens;
  end_at(token_id, may_stop);
  std::string piece;
  if (decoder_) {
    if (finish_reason_ != FinishReason::kStop || params_.include_stop_str_in_output)
      piece = decoder_->push(token_id);
    if (finish_reason_) piece += decoder_->flush();
    if (!may_stop) num_early_ = decoder_->num_held();
  }
  return finish(std::move(piece), may_stop);
}

void StopChecker::restart(const std::vector<std::int64_t>& token_ids) {
  *this = StopChecker(std::move(params_), max_tokens_, std::move(end_token_ids_), tokenizer_);
  for (const std::int64_t token_id : token_ids) push(token_id);
}

void StopChecker::end_at(std::int64_t token_id, bool may_stop) {
  const auto& ends = end_token_ids_;
  const bool is_end = std::find(ends.begin(), ends.end(), token_id) != ends.end();
  const auto reason = stop_reasons_.find(token_id);
  if (may_stop && !params_.ignore_eos && is_end) {
    finish_reason_ = FinishReason::kStop;
  } else if (may_stop && reason != stop_reasons_.end()) {
    finish_reason_ = FinishReason::kStop;
    stop_reason_ = reason->second;
  } else if (num_tokens_ >= max_tokens_) {
    finish_reason_ = FinishReason::kLength;
  }
}

std::string StopChecker::abort(StopReason reason) {
  if (finish_reason_) return "";
  finish_reason_ = FinishReason::kAbort;
  stop_reason_ = std::move(reason);
  return finish(decoder_ ? decoder_->flush() : "", false);
}

void StopChecker::fail(std::string reason) {
  finish_reason_ = FinishReason::kError;
  stop_reason_ = std::move(reason);
}

std::string StopChecker::finish(std::string piece, bool may_stop) {
  if (!params_.stop.empty()) piece = up_to_stop_string(piece, may_stop);
  text_ += piece;
  return piece;
}

std::string StopChecker::up_to_stop_string(const std::string& piece, bool may_stop) {
  const bool included = params_.include_stop_str_in_output;
  const std::string text = tail_ + piece;  // contains any stop string that ends in piece
  const std::size_t returned = included ? tail_.size() : 0;
  const std::size_t num_old = tail_.size() + bytes_of_characters(piece, num_early_);
  const auto found = may_stop ? find_stop_string(text, num_old) : std::nullopt;
  if (may_stop && !piece.empty()) num_early_ = 0;  // characters held back have come with the piece
  if (found) {
    finish_reason_ = FinishReason::kStop;
    stop_reason_ = *found->stop;
    tail_.clear();
    return text.substr(returned, (included ? found->end : found->start) - returned);
  }
  const std::size_t held = finish_reason_ ? 0 : length_of_beginning(text);
  tail_ = text.substr(text.size() - held);
  return text.substr(returned, (included ? text.size() : text.size() - held) - returned);
}

std::optional<StopChecker::Found> StopChecker::find_stop_string(std::string_view text,
                                                                std::size_t num_old) const {
  std::optional<Found> first;
  for (const std::string& stop : params_.stop) {
    const std::size_t from = num_old >= stop.size() ? num_old - stop.size() + 1 : 0;
    const std::size_t start = text.find(stop, from);
    if (start == std::string_view::npos) continue;
    const Found found{start + stop.size(), start, &stop};
    if (!first || std::tie(found.end, found.start) < std::tie(first->end, first->start))
      first = found;
  }
  return first;
}

std::size_t StopChecker::length_of_beginning(std::string_view text) const {
  for (std::size_t length = std::min(longest_stop_ - 1, text.size()); length > 0; --length) {
    const std::string_view ending = text.substr(text.size() - length);
    for (const std::string& stop : params_.stop)
      if (stop.size() > length && stop.compare(0, length, ending) == 0) return length;
  }
  return 0;
}

}  // namespace skipdec::runtime
