#include "stitching/passes.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>

#include "errors.h"

namespace skipdec::runtime {

namespace {

// Limit of bindings kept per layer, one per shape of its calls; beyond it all are made again.
constexpr std::int64_t kKeptBindings = 64;

bool names(const LayerPlan& plan, std::int64_t layer) {
  return std::binary_search(plan.begin(), plan.end(), layer);
}

// Returns how many of the row's tokens, from the first on, run ``layer``.
std::int64_t active_count(const StepRow& row, std::int64_t layer) {
  return std::count_if(row.plans.begin(), row.plans.end(),
                       [&](const LayerPlan* plan) { return names(*plan, layer); });
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

// Returns true for ONNX Runtime's attention, which takes several tokens with a past for one row
// only.
bool runs_row_by_row(const Session& layer) { return layer.spec().find(Role::kSeqlensK) != nullptr; }

}  // namespace

Passes::Passes(const Engines& engines, const Manifest& manifest, SlotCache& cache)
    : engines_(engines), manifest_(manifest), cache_(cache) {}

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
  if (!is_current(rows)) {
    if (static_cast<std::int64_t>(bound_.size()) > kKeptBindings * engines_.num_layers()) unbind();
    reserve_buffers(rows);
    find_route(rows);
  }
  Route& route = *route_;
  std::size_t place = 0;
  for (const std::size_t index : route.order) {
    const StepRow& row = rows[index];
    for (std::size_t offset = 0; offset < row.tokens.size(); ++offset, ++place) {
      all_->input_ids()[place] = row.tokens[offset];
      all_->position_ids()[place] = row.position + static_cast<std::int64_t>(offset);
    }
  }
  route.embed->run();
  const Group* group = nullptr;
  for (const Stop& stop : route.stops) {
    if (&route.groups[stop.group] != group) {
      if (group != nullptr) scatter(*group);
      group = &route.groups[stop.group];
      gather(*group, rows);
    }
    for (Binding* const binding : stop.bindings) binding->run();
  }
  if (group != nullptr) scatter(*group);
  route.head->run();
  for (const StepRow& row : rows) {
    cache_.set_length(row.row, row.position + static_cast<std::int64_t>(row.tokens.size()));
  }
  return route.logits;
}

void Passes::unbind() {
  route_.reset();
  bound_.clear();
}

bool Passes::is_current(const std::vector<StepRow>& rows) const {
  return route_ && route_->version == cache_.version() &&
         std::equal(rows.begin(), rows.end(), route_->made_of.begin(), route_->made_of.end(),
                    [](const StepRow& row, const auto& known) {
                      return row.row == known.first && row.plans == known.second;
                    });
}

// Makes the buffers large enough; they double, so that few are allocated.
void Passes::reserve_buffers(const std::vector<StepRow>& rows) {
  std::size_t longest = 0;
  for (const StepRow& row : rows) longest = std::max(longest, row.tokens.size());
  const auto needed = static_cast<std::int64_t>(rows.size() * longest);
  if (all_ && all_->size() >= needed) return;
  std::int64_t size = 1;
  while (size < needed) size *= 2;
  unbind();
  ends_.clear();
  all_.emplace(manifest_, size);
  part_.emplace(manifest_, size);
}

// Finds the calls of the layers that the rows reside in, lowest first.
void Passes::find_route(const std::vector<StepRow>& rows) {
  Route route;
  route.version = cache_.version();
  std::unordered_map<SlotCache::Row, std::size_t> index_of;
  for (std::size_t index = 0; index < rows.size(); ++index) {
    route.made_of.emplace_back(rows[index].row, rows[index].plans);
    index_of[rows[index].row] = index;
    route.order.push_back(index);
  }
  const std::vector<SlotCache::Row>& top = cache_.residents(engines_.num_layers() - 1);
  if (top.size() == rows.size()) {
    for (std::size_t place = 0; place < top.size(); ++place) {
      route.order[place] = index_of.at(top[place]);
    }
  }
  std::int64_t count = 0;
  Indices first_of(rows.size());  // by index
  for (const std::size_t index : route.order) {
    route.firsts.push_back(count);
    first_of[index] = count;
    count += static_cast<std::int64_t>(rows[index].tokens.size());
  }
  for (std::int64_t layer = 0; layer < engines_.num_layers(); ++layer) {
    if (cache_.residents(layer).empty()) continue;
    Group group = group_of(layer, route, rows);
    if (route.groups.empty() || !route.groups.back().equals(group)) {
      route.groups.push_back(std::move(group));
    }
    route.stops.push_back(
        {route.groups.size() - 1, layer_bindings(layer, route.groups.back(), route.firsts)});
  }
  for (std::size_t index = 0; index < rows.size(); ++index) {
    for (std::size_t offset = 0; offset < rows[index].tokens.size(); ++offset) {
      route.logits.push_back(all_->logits(first_of[index] + static_cast<std::int64_t>(offset)));
    }
  }
  route.embed = end_binding(*engines_.embed, count);
  route.head = end_binding(*engines_.head, count);
  route_ = std::move(route);
}

Passes::Group Passes::group_of(std::int64_t layer, const Route& route,
                               const std::vector<StepRow>& rows) const {
  Group group;
  for (const SlotCache::Row number : cache_.residents(layer)) {
    const auto found = std::find_if(route.order.begin(), route.order.end(),
                                    [&](std::size_t index) { return rows[index].row == number; });
    group.rows.push_back(found - route.order.begin());
    group.counts.push_back(active_count(rows[*found], layer));
    group.longest = std::max(group.longest, group.counts.back());
  }
  bool is_dense = group.rows.size() == rows.size();
  for (std::size_t slot = 0; slot < group.rows.size() && is_dense; ++slot) {
    const auto tokens = static_cast<std::int64_t>(rows[route.order[slot]].tokens.size());
    const bool is_whole = group.counts[slot] == group.longest && tokens == group.longest;
    is_dense =
        group.rows[slot] == static_cast<std::int64_t>(slot) && (rows.size() == 1 || is_whole);
  }
  const Session& session = *engines_.layers[static_cast<std::size_t>(layer)];
  group.is_gathered = !is_dense && !runs_row_by_row(session);
  return group;
}

std::vector<Binding*> Passes::layer_bindings(std::int64_t layer, const Group& group,
                                             const Indices& firsts) {
  const auto count = static_cast<std::int64_t>(group.rows.size());
  if (!runs_row_by_row(*engines_.layers[static_cast<std::size_t>(layer)])) {
    return {layer_binding({layer, 0, count, group.longest, 0, group.is_gathered})};
  }
  std::vector<Binding*> bindings;
  for (std::int64_t slot = 0; slot < count; ++slot) {
    const auto place = static_cast<std::size_t>(slot);
    const std::int64_t first = firsts[static_cast<std::size_t>(group.rows[place])];
    bindings.push_back(layer_binding({layer, slot, 1, group.counts[place], first, false}));
  }
  return bindings;
}

Binding* Passes::layer_binding(const Shape& shape) {
  const auto& [layer, slot, rows, tokens, first_token, is_gathered] = shape;
  const std::uint64_t generation = cache_.generation(layer);
  Bound& bound = bound_[shape];
  if (!bound.binding || bound.generation != generation) {
    bound.binding.reset();
    StepBuffers& buffers = is_gathered ? *part_ : *all_;
    std::vector<BoundTensor> tensors = buffers.tensors(rows, tokens, slot, first_token);
    add_cache(tensors, cache_.layout(), cache_.slots(layer, slot, rows));
    bound.binding = engines_.layers[static_cast<std::size_t>(layer)]->bind(tensors);
    bound.generation = generation;
  }
  return bound.binding.get();
}

Binding* Passes::end_binding(Session& session, std::int64_t tokens) {
  std::unique_ptr<Binding>& binding = ends_[{&session, tokens}];
  if (!binding) binding = session.bind(all_->tensors(tokens));
  return binding.get();
}

// Sets the positions of the group's rows and gathers its tokens.
void Passes::gather(const Group& group, const std::vector<StepRow>& rows) {
  StepBuffers& buffers = group.is_gathered ? *part_ : *all_;
  for (std::size_t slot = 0; slot < group.rows.size(); ++slot) {
    const auto row = static_cast<std::size_t>(group.rows[slot]);
    const std::int64_t start = rows[route_->order[row]].position;
    buffers.set_row(slot, start, group.counts[slot]);
    if (!group.is_gathered) continue;
    for (std::int64_t token = 0; token < group.longest; ++token) {
      const std::int64_t own = std::min(token, group.counts[slot] - 1);  // the last one is padding
      const std::int64_t place = static_cast<std::int64_t>(slot) * group.longest + token;
      std::memcpy(buffers.hidden_state(place), all_->hidden_state(route_->firsts[row] + own),
                  buffers.row_bytes());
      buffers.position_ids()[static_cast<std::size_t>(place)] = start + own;
    }
  }
}

void Passes::scatter(const Group& group) {
  if (!group.is_gathered) return;
  for (std::size_t slot = 0; slot < group.rows.size(); ++slot) {
    const std::int64_t first = route_->firsts[static_cast<std::size_t>(group.rows[slot])];
    std::memcpy(all_->hidden_state(first),
                part_->hidden_state(static_cast<std::int64_t>(slot) * group.longest),
                static_cast<std::size_t>(group.counts[slot]) * part_->row_bytes());
  }
}

}  // namespace skipdec::runtime
