#include "stitching/passes.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "errors.h"

namespace skipdec::runtime {

namespace {

// Limit of bindings kept per layer, one per shape of its calls; beyond it, all are made again.
constexpr std::int64_t kKeptBindings = 256;

const std::vector<std::int64_t> kNothingRead;

bool names(const LayerPlan& plan, std::int64_t layer) {
  return std::binary_search(plan.begin(), plan.end(), layer);
}

// Returns how many of the row's tokens, from the first on, run ``layer``.
std::size_t active_count(const StepRow& row, std::int64_t layer) {
  const auto count = std::count_if(row.plans.begin(), row.plans.end(),
                                   [&](const LayerPlan* plan) { return names(*plan, layer); });
  return static_cast<std::size_t>(count);
}

[[noreturn]] void refuse(const StepRow& row, const std::string& problem) {
  throw Error(Status::kInternal, "row " + std::to_string(row.row), problem);
}

void require_falling_depth(const StepRow& row) {
  for (std::size_t index = 1; index < row.plans.size(); ++index) {
    const LayerPlan &before = *row.plans[index - 1], &after = *row.plans[index];
    if (!std::includes(before.begin(), before.end(), after.begin(), after.end())) {
      refuse(row, "feeds a token to a layer that the token before it bypasses");
    }
  }
}

}  // namespace

Passes::Passes(const Engines& engines, const Manifest& manifest, SlotCache& cache,
               std::int64_t max_rows)
    : engines_(engines),
      manifest_(manifest),
      cache_(cache),
      all_(manifest, max_rows),
      part_(manifest, max_rows) {
  draft_logits_.reserve(static_cast<std::size_t>(max_rows));
}

std::int64_t Passes::num_draft_logits() const {
  return engines_.draft_head != nullptr ? manifest_.draft_head->tokens : manifest_.model.vocab_size;
}

void Passes::check(const std::vector<StepRow>& rows) const {
  for (const StepRow& row : rows) {
    if (row.tokens.empty() || row.tokens.size() != row.plans.size()) {
      refuse(row, "feeds " + std::to_string(row.tokens.size()) + " tokens with " +
                      std::to_string(row.plans.size()) + " plans; each has one");
    }
    require_falling_depth(row);
    for (std::size_t index = 0; index < row.plans.size(); ++index) {
      // The last token of a plan reaches furthest.
      if (index + 1 < row.plans.size() && row.plans[index + 1] == row.plans[index]) continue;
      const std::int64_t position = row.position + static_cast<std::int64_t>(index);
      std::int64_t reserved = std::numeric_limits<std::int64_t>::max();
      for (const std::int64_t layer : *row.plans[index]) {
        reserved = std::min(reserved, cache_.reserved(row.row, layer));
      }
      if (position >= reserved) {
        refuse(row, "feeds a token at position " + std::to_string(position) +
                        "; a layer of its plan holds " + std::to_string(reserved) +
                        " positions of the row");
      }
    }
  }
}

const std::vector<const float*>& Passes::run(const std::vector<StepRow>& rows) {
  const Route& route = route_of(route_, rows, nullptr);
  const bool is_read =
      cache_.num_layers() > engines_.num_layers();  // a draft layer reads the states
  run_layers(route, rows, is_read ? engines_.reads : kNothingRead);
  route.head->run();
  for (const StepRow& row : rows) {
    cache_.set_length(row.row, row.position + static_cast<std::int64_t>(row.tokens.size()));
  }
  layers_called_ = static_cast<std::int64_t>(route.stops.size());
  return route.logits;
}

const std::vector<const float*>& Passes::draft(const std::vector<StepRow>& rows,
                                               const std::vector<std::size_t>& drafting,
                                               const LayerPlan& plan) {
  const Route& route = route_of(draft_route_, rows, &plan);
  run_layers(route, rows, kNothingRead);
  draft_logits_.clear();
  for (const std::size_t index : drafting) {
    const std::size_t place = draft_logits_.size();
    all_.chosen_positions()[place] = static_cast<std::int64_t>(route.firsts[index]);
    draft_logits_.push_back(all_.logits(static_cast<std::int64_t>(place), num_draft_logits()));
  }
  draft_head_binding(rows.size(), drafting.size())->run();
  return draft_logits_;
}

void Passes::unbind() {
  route_.reset();
  draft_route_.reset();
  bound_.clear();
}

// Runs embedding and layers; keeps the states after as many layers as each of ``reads`` says.
void Passes::run_layers(const Route& route, const std::vector<StepRow>& rows,
                        const std::vector<std::int64_t>& reads) {
  std::size_t place = 0;
  for (const std::size_t index : route.order) {
    const StepRow& row = rows[index];
    for (std::size_t offset = 0; offset < row.tokens.size(); ++offset, ++place) {
      all_.input_ids()[place] = row.tokens[offset];
      all_.position_ids()[place] = row.position + static_cast<std::int64_t>(offset);
    }
  }
  route.embed->run();
  const Group* group = nullptr;
  std::size_t kept = 0;
  for (const Stop& stop : route.stops) {
    for (; kept < reads.size() && reads[kept] <= stop.layer; ++kept) {
      if (group != nullptr) scatter(route, *group);
      keep_states(kept, place, reads.size());
    }
    if (&route.groups[stop.group] != group) {
      if (group != nullptr) scatter(route, *group);
      group = &route.groups[stop.group];
      gather(route, *group, rows);
    }
    for (Binding* const binding : stop.bindings) binding->run();
  }
  if (group != nullptr) scatter(route, *group);
  for (; kept < reads.size(); ++kept) keep_states(kept, place, reads.size());
}

// Keeps the present states of all ``tokens`` as number ``index`` of the ``count`` that are read.
void Passes::keep_states(std::size_t index, std::size_t tokens, std::size_t count) {
  const std::size_t bytes = all_.row_bytes();
  states_.resize(std::max(states_.size(), tokens * count * bytes));
  for (std::size_t token = 0; token < tokens; ++token) {
    std::memcpy(states_.data() + (token * count + index) * bytes,
                all_.hidden_state(static_cast<std::int64_t>(token)), bytes);
  }
}

// Returns ``known``, the route of an earlier pass, after renewing it if it does not fit this pass.
const Passes::Route& Passes::route_of(std::optional<Route>& known, const std::vector<StepRow>& rows,
                                      const LayerPlan* plan) {
  const bool is_current =
      known && known->version == cache_.version() && known->plan == plan &&
      std::equal(rows.begin(), rows.end(), known->made_of.begin(), known->made_of.end(),
                 [](const StepRow& row, const auto& made_of) {
                   return row.row == made_of.first && row.plans == made_of.second;
                 });
  if (!is_current) {
    if (static_cast<std::int64_t>(bound_.size()) > kKeptBindings * cache_.num_layers()) unbind();
    reserve_buffers(rows);
    known = found_route(rows, plan);
  }
  return *known;
}

// Makes the buffers large enough. They double in size, so that there are few allocations.
void Passes::reserve_buffers(const std::vector<StepRow>& rows) {
  std::size_t longest = 0;
  for (const StepRow& row : rows) longest = std::max(longest, row.tokens.size());
  const auto needed = static_cast<std::int64_t>(rows.size() * longest);
  if (needed <= all_.size()) return;
  std::int64_t size = all_.size();
  while (size < needed) size *= 2;
  StepBuffers all(manifest_, size), part(manifest_, size);  // may throw
  unbind();
  ends_.clear();
  all_ = std::move(all);
  part_ = std::move(part);
}

// Finds the calls of the layers in which the rows reside, or of those in ``plan``, lowest first.
Passes::Route Passes::found_route(const std::vector<StepRow>& rows, const LayerPlan* plan) {
  Route route;
  route.version = cache_.version();
  route.plan = plan;
  std::size_t count = 0;
  for (const StepRow& row : rows) {
    route.made_of.emplace_back(row.row, row.plans);
    count += row.tokens.size();
  }
  place_rows(route, rows);
  find_stops(route, rows);
  route.embed = end_binding(*engines_.embed, count);
  if (plan != nullptr) return route;
  route.head = end_binding(*engines_.head, count);
  for (std::size_t index = 0; index < rows.size(); ++index) {
    for (std::size_t offset = 0; offset < rows[index].tokens.size(); ++offset) {
      route.logits.push_back(all_.logits(static_cast<std::int64_t>(route.firsts[index] + offset)));
    }
  }
  return route;
}

// Places the rows in the order of the top layer's slots, if all of them run it.
void Passes::place_rows(Route& route, const std::vector<StepRow>& rows) {
  for (std::size_t index = 0; index < rows.size(); ++index) {
    route.index_of[rows[index].row] = index;
    route.order.push_back(index);
  }
  const std::int64_t top = route.plan == nullptr ? engines_.num_layers() - 1 : route.plan->back();
  const std::vector<SlotCache::Row>& residents = cache_.residents(top);
  if (residents.size() == rows.size()) {
    std::transform(residents.begin(), residents.end(), route.order.begin(),
                   [&](SlotCache::Row row) { return route.index_of.at(row); });
  }
  std::size_t placed = 0;
  route.firsts.resize(rows.size());
  for (const std::size_t index : route.order) {
    route.firsts[index] = placed;
    placed += rows[index].tokens.size();
  }
}

void Passes::find_stops(Route& route, const std::vector<StepRow>& rows) {
  for (std::int64_t layer = 0; layer < engines_.num_layers(); ++layer) {
    const bool is_called = route.plan == nullptr || names(*route.plan, layer);
    if (!is_called || cache_.residents(layer).empty()) continue;
    Group group = group_of(layer, route, rows);
    if (route.groups.empty() || !route.groups.back().equals(group)) {
      route.groups.push_back(std::move(group));
    }
    route.stops.push_back(
        {layer, route.groups.size() - 1, layer_bindings(layer, route.groups.back(), route.firsts)});
  }
}

Passes::Group Passes::group_of(std::int64_t layer, const Route& route,
                               const std::vector<StepRow>& rows) const {
  Group group;
  // A single row's tokens are packed however many of them run; those of several rows only if all
  // run and each row has equally many.
  std::size_t most_fed = 0;
  for (const SlotCache::Row number : cache_.residents(layer)) {
    const std::size_t index = route.index_of.at(number);
    const StepRow& row = rows[index];
    group.rows.push_back(index);
    group.counts.push_back(route.plan == nullptr ? active_count(row, layer) : 1);
    most_fed = std::max(most_fed, row.tokens.size());
  }
  const auto [least, most] = std::minmax_element(group.counts.begin(), group.counts.end());
  const bool is_packed = group.rows == route.order && (rows.size() == 1 || *least == most_fed);
  group.longest = *most;
  group.is_split = group.longest > 1 && runs_row_by_row(engines_.layer(layer));
  group.is_gathered = !is_packed && !group.is_split;
  return group;
}

std::vector<Binding*> Passes::layer_bindings(std::int64_t layer, const Group& group,
                                             const Indices& firsts) {
  if (!group.is_split) {
    return {layer_binding({layer, 0, group.rows.size(), group.longest, 0, group.is_gathered})};
  }
  std::vector<Binding*> bindings;
  bindings.reserve(group.rows.size());
  for (std::size_t slot = 0; slot < group.rows.size(); ++slot) {
    bindings.push_back(
        layer_binding({layer, slot, 1, group.counts[slot], firsts[group.rows[slot]], false}));
  }
  return bindings;
}

Binding* Passes::layer_binding(const Shape& shape) {
  const auto& [layer, slot, rows, tokens, first_token, is_gathered] = shape;
  const auto first_slot = static_cast<std::int64_t>(slot), count = static_cast<std::int64_t>(rows);
  const std::uint64_t generation = cache_.generation(layer);
  Bound& bound = bound_[shape];
  if (!bound.binding || bound.generation != generation) {
    bound.binding.reset();
    std::vector<BoundTensor> tensors =
        (is_gathered ? part_ : all_)
            .tensors(count, static_cast<std::int64_t>(tokens), first_slot,
                     static_cast<std::int64_t>(first_token));
    add_cache(tensors, cache_.layout(), cache_.slots(layer, first_slot, count));
    bound.binding = engines_.layer(layer).bind(tensors);
    bound.generation = generation;
    ++num_bound_;
  }
  return bound.binding.get();
}

Binding* Passes::end_binding(Session& session, std::size_t tokens) {
  std::unique_ptr<Binding>& binding = ends_[{&session, tokens, 0}];
  if (!binding) {
    binding = session.bind(all_.tensors(static_cast<std::int64_t>(tokens)));
    ++num_bound_;
  }
  return binding.get();
}

Binding* Passes::draft_head_binding(std::size_t rows, std::size_t drafting) {
  Session& session = engines_.draft_head != nullptr ? *engines_.draft_head : *engines_.head;
  std::unique_ptr<Binding>& binding = ends_[{&session, rows, drafting}];
  if (!binding) {
    binding = session.bind(all_.head_tensors(
        static_cast<std::int64_t>(rows), static_cast<std::int64_t>(drafting), num_draft_logits()));
    ++num_bound_;
  }
  return binding.get();
}

// Sets the positions of the group's rows and gathers its tokens.
void Passes::gather(const Route& route, const Group& group, const std::vector<StepRow>& rows) {
  StepBuffers& buffers = group.is_gathered ? part_ : all_;
  for (std::size_t slot = 0; slot < group.rows.size(); ++slot) {
    const std::size_t index = group.rows[slot];
    const std::int64_t start = rows[index].position;
    buffers.set_row(slot, start, static_cast<std::int64_t>(group.counts[slot]));
    if (!group.is_gathered) continue;
    for (std::size_t token = 0; token < group.longest; ++token) {
      const std::size_t own = std::min(token, group.counts[slot] - 1);  // the last one is padding
      const std::size_t place = slot * group.longest + token;
      std::memcpy(buffers.hidden_state(static_cast<std::int64_t>(place)),
                  all_.hidden_state(static_cast<std::int64_t>(route.firsts[index] + own)),
                  buffers.row_bytes());
      buffers.position_ids()[place] = start + static_cast<std::int64_t>(own);
    }
  }
  if (!group.is_split) buffers.set_total(group.rows.size());
}

void Passes::scatter(const Route& route, const Group& group) {
  if (!group.is_gathered) return;
  for (std::size_t slot = 0; slot < group.rows.size(); ++slot) {
    const std::size_t first = route.firsts[group.rows[slot]];
    std::memcpy(all_.hidden_state(static_cast<std::int64_t>(first)),
                part_.hidden_state(static_cast<std::int64_t>(slot * group.longest)),
                group.counts[slot] * part_.row_bytes());
  }
}

}  // namespace skipdec::runtime
