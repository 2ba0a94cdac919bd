#include "stitching/slot_stitcher.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "errors.h"

namespace skipdec::runtime {

namespace {

constexpr std::int64_t kFollowedTokens = 256;  // of one call: more would only cost memory

}  // namespace

SlotStitcher::SlotStitcher(const Engines& engines, const Manifest& manifest,
                           const SlotLimits& limits, bool keeps_prefixes, bool has_draft_layer)
    : engines_(engines),
      vocab_size_(manifest.model.vocab_size),
      draft_tokens_(manifest.draft_head ? manifest.draft_head->tokens : 0),
      pool_(limits.kv_bytes),
      cache_(pool_, KVLayout::of(manifest), engines.num_layers() + (has_draft_layer ? 1 : 0),
             limits),
      prompts_(engines, manifest),
      all_(manifest, limits.max_rows),
      part_(manifest, limits.max_rows),
      passes_(engines, manifest, cache_) {
  logits_.reserve(static_cast<std::size_t>(limits.max_rows));
  if (keeps_prefixes) prefixes_.emplace(pool_, cache_.layout(), engines.num_layers());
}

const std::vector<const float*>& SlotStitcher::step(const std::vector<StepRow>& rows) {
  const bool is_ordinary = std::all_of(rows.begin(), rows.end(),
                                       [](const StepRow& row) { return row.tokens.size() == 1; });
  if (!is_ordinary) passes_.check(rows);
  for (const StepRow& row : rows) leave_bypassed(row);
  if (!is_ordinary) {
    const std::vector<const float*>& logits = passes_.run(rows);
    layers_called_ = passes_.layers_called();
    return logits;
  }
  if (!is_current(route_, rows, nullptr)) route_ = route_of(rows, nullptr);
  run(*route_, rows);
  end_binding(*engines_.head, static_cast<std::int64_t>(rows.size()))->run();
  for (const StepRow& row : rows) cache_.set_length(row.row, row.position + 1);
  layers_called_ = static_cast<std::int64_t>(route_->stops.size());
  logits_.clear();
  for (const std::int64_t place : route_->places) logits_.push_back(all_.logits(place));
  return logits_;
}

const std::vector<const float*>& SlotStitcher::draft(const std::vector<StepRow>& rows,
                                                     const std::vector<std::size_t>& drafting,
                                                     const LayerPlan& plan, bool is_narrow) {
  for (const StepRow& row : rows) leave_bypassed(row);
  if (!is_current(draft_route_, rows, &plan)) draft_route_ = route_of(rows, &plan);
  run(*draft_route_, rows);
  logits_.clear();
  for (const std::size_t row : drafting) {
    const std::size_t place = logits_.size();
    all_.chosen_positions()[place] = draft_route_->places[row];
    logits_.push_back(all_.logits(static_cast<std::int64_t>(place), num_logits(is_narrow)));
  }
  draft_head_binding(static_cast<std::int64_t>(rows.size()),
                     static_cast<std::int64_t>(drafting.size()), is_narrow)
      ->run();
  return logits_;
}

void SlotStitcher::follow(SlotCache::Row row, const TokenSpan& tokens, std::int64_t start,
                          const LayerPlan& plan) {
  const auto slot_of = [&](std::int64_t layer) {
    const Rows& inside = cache_.residents(layer);
    const auto found = std::find(inside.begin(), inside.end(), row);
    return cache_.slots(layer, found - inside.begin(), 1);
  };
  const auto count = static_cast<std::int64_t>(tokens.size());
  for (std::int64_t done = 0; done < count; done += kFollowedTokens) {
    const auto first = tokens.begin() + done;
    const TokenSpan some(first, first + std::min(kFollowedTokens, count - done));
    prompts_.follow(some, start + done, plan, slot_of);
  }
}

void SlotStitcher::run(const Route& route, const std::vector<StepRow>& rows) {
  for (std::size_t place = 0; place < rows.size(); ++place) {
    const StepRow& row = rows[route.order[place]];
    all_.input_ids()[place] = row.tokens.front();
    all_.set_position(place, row.position);
  }
  all_.set_total(rows.size());
  route.embed->run();
  run_layers(route, rows);
}

void SlotStitcher::truncate(SlotCache::Row row, std::int64_t length) {
  const auto found = depths_.find(row);
  const std::int64_t low = found == depths_.end() ? 0 : found->second.since;
  const std::int64_t high = cache_.length(row);
  if (length < low || length > high) {
    throw Error(Status::kInternal, "row " + std::to_string(row),
                "can be rolled back to " + std::to_string(low) + " to " + std::to_string(high) +
                    " positions, not to " + std::to_string(length));
  }
  cache_.set_length(row, length);
}

// Frees the row's slots in the layers that it bypasses from now on.
void SlotStitcher::leave_bypassed(const StepRow& row) {
  const LayerPlan* const plan = row.plans.front();
  const auto found = depths_.find(row.row);
  const LayerPlan* const before = found == depths_.end() ? nullptr : found->second.plan;
  if (before == plan) return;
  for (std::int64_t layer = 0; layer < engines_.num_layers(); ++layer) {
    const auto runs = [&](const LayerPlan& each) {
      return std::binary_search(each.begin(), each.end(), layer);
    };
    if ((before == nullptr || runs(*before)) && !runs(*plan)) cache_.leave(row.row, layer);
  }
  depths_[row.row] = {plan, row.position};
}

bool SlotStitcher::is_current(const std::optional<Route>& route, const std::vector<StepRow>& rows,
                              const LayerPlan* plan) const {
  return route && route->version == cache_.version() && route->plan == plan &&
         std::equal(rows.begin(), rows.end(), route->numbers.begin(), route->numbers.end(),
                    [](const StepRow& row, SlotCache::Row number) { return row.row == number; });
}

// Finds the calls of the layers that the rows reside in, lowest first: of all or those of ``plan``.
SlotStitcher::Route SlotStitcher::route_of(const std::vector<StepRow>& rows,
                                           const LayerPlan* plan) {
  Route route;
  route.version = cache_.version();
  route.plan = plan;
  for (const StepRow& row : rows) route.numbers.push_back(row.row);
  const Rows& top = cache_.residents(plan == nullptr ? engines_.num_layers() - 1 : plan->back());
  const Rows order = top.size() == rows.size() ? top : route.numbers;
  std::unordered_map<SlotCache::Row, std::size_t> place_of;  // in the buffers
  for (std::size_t place = 0; place < order.size(); ++place) place_of[order[place]] = place;
  const Rows* now = &order;
  std::size_t gathered = Stop::kAll;
  const std::int64_t end = plan == nullptr ? engines_.num_layers() : cache_.num_layers();
  for (std::int64_t layer = 0; layer < end; ++layer) {
    const Rows& inside = cache_.residents(layer);
    const bool is_called = plan == nullptr || std::binary_search(plan->begin(), plan->end(), layer);
    if (inside.empty() || !is_called) continue;
    if (inside != *now) {
      now = &inside;
      gathered = Stop::kAll;
      if (inside != order) {
        gathered = route.gathers.size();
        std::vector<std::size_t>& places = route.gathers.emplace_back();
        for (const SlotCache::Row row : inside) places.push_back(place_of.at(row));
      }
    }
    const auto count = static_cast<std::int64_t>(inside.size());
    route.stops.push_back({gathered, layer_binding(layer, count, gathered != Stop::kAll)});
  }
  std::unordered_map<SlotCache::Row, std::size_t> index_of;  // in ``numbers``
  for (std::size_t index = 0; index < rows.size(); ++index) index_of[rows[index].row] = index;
  for (const SlotCache::Row row : order) route.order.push_back(index_of.at(row));
  for (const SlotCache::Row row : route.numbers) {
    route.places.push_back(static_cast<std::int64_t>(place_of.at(row)));
  }
  route.embed = end_binding(*engines_.embed, static_cast<std::int64_t>(rows.size()));
  return route;
}

void SlotStitcher::run_layers(const Route& route, const std::vector<StepRow>& rows) {
  std::size_t gathered = Stop::kAll;
  for (const Stop& stop : route.stops) {
    if (stop.gather != gathered) {
      if (gathered != Stop::kAll) scatter(route.gathers[gathered]);
      gathered = stop.gather;
      if (gathered != Stop::kAll) gather(route, route.gathers[gathered], rows);
    }
    stop.binding->run();
  }
  if (gathered != Stop::kAll) scatter(route.gathers[gathered]);
}

// Copies rows of the step, and their positions, to the second buffers.
void SlotStitcher::gather(const Route& route, const std::vector<std::size_t>& places,
                          const std::vector<StepRow>& rows) {
  for (std::size_t index = 0; index < places.size(); ++index) {
    std::memcpy(part_.hidden_state(static_cast<std::int64_t>(index)),
                all_.hidden_state(static_cast<std::int64_t>(places[index])), all_.row_bytes());
    part_.set_position(index, rows[route.order[places[index]]].position);
  }
  part_.set_total(places.size());
}

void SlotStitcher::scatter(const std::vector<std::size_t>& places) {
  for (std::size_t index = 0; index < places.size(); ++index) {
    std::memcpy(all_.hidden_state(static_cast<std::int64_t>(places[index])),
                part_.hidden_state(static_cast<std::int64_t>(index)), all_.row_bytes());
  }
}

Binding* SlotStitcher::layer_binding(std::int64_t layer, std::int64_t rows, bool is_part) {
  const std::uint64_t generation = cache_.generation(layer);
  Bound& bound = bound_[{layer, rows, is_part}];
  if (!bound.binding || bound.generation != generation) {
    bound.binding.reset();
    std::vector<BoundTensor> tensors = (is_part ? part_ : all_).tensors(rows);
    add_cache(tensors, cache_.layout(), cache_.first(layer, rows));
    bound.binding = engines_.layer(layer).bind(tensors);
    bound.generation = generation;
  }
  return bound.binding.get();
}

Binding* SlotStitcher::end_binding(Session& session, std::int64_t rows) {
  std::unique_ptr<Binding>& binding = ends_[{&session, rows}];
  if (!binding) binding = session.bind(all_.tensors(rows));
  return binding.get();
}

Binding* SlotStitcher::draft_head_binding(std::int64_t rows, std::int64_t drafting,
                                          bool is_narrow) {
  Session& session = is_narrow ? *engines_.draft_head : *engines_.head;
  std::unique_ptr<Binding>& binding = draft_heads_[{&session, rows, drafting}];
  if (!binding) {
    binding = session.bind(all_.head_tensors(rows, drafting, num_logits(is_narrow)));
  }
  return binding.get();
}

void SlotStitcher::release(SlotCache::Row row) {
  if (chunked_ && (chunked_->row->row == row ||
                   std::find(chunked_->row->copies.begin(), chunked_->row->copies.end(), row) !=
                       chunked_->row->copies.end())) {
    chunked_.reset();
  }
  depths_.erase(row);
  cache_.release(row);
}

void SlotStitcher::reset() {
  chunked_.reset();
  route_.reset();
  draft_route_.reset();
  bound_.clear();
  passes_.unbind();
  depths_.clear();
  cache_.clear();
  if (prefixes_) prefixes_->clear();
}

}  // namespace skipdec::runtime
