#include "stitching/engines.h"

namespace skipdec::runtime {

Engines Engines::load(const Manifest& manifest, Backend& backend) {
  Engines engines;
  engines.embed = backend.load(manifest.embed);
  engines.head = backend.load(manifest.head);
  engines.layers.reserve(manifest.layers.size());
  for (const EngineSpec& layer : manifest.layers) engines.layers.push_back(backend.load(layer));
  return engines;
}

void Engines::load_trained_drafts(const Bundle& bundle, Backend& backend) {
  const std::optional<TrainedDraft>& draft = bundle.manifest().trained_draft;
  if (!draft) return;
  const auto load = [&](const EngineSpec& spec) {
    bundle.check_weights(spec);
    return backend.load(spec);
  };
  draft_states = load(draft->states);
  draft_entry = load(draft->entry);
  trained_head = load(draft->head);
  draft_layer = load(draft->layer);
  reads = draft->reads;
}

void Engines::load_draft_head(const Bundle& bundle, Backend& backend) {
  const std::optional<DraftHead>& draft = bundle.manifest().draft_head;
  if (draft) draft_head = backend.load(draft->engine);
}

bool runs_row_by_row(const Session& layer) { return layer.spec().find(Role::kSeqlensK) != nullptr; }

void run_once(Session& session, const std::vector<BoundTensor>& tensors) {
  session.bind(tensors)->run();
}

void add_cache(std::vector<BoundTensor>& tensors, const KVLayout& layout, const CacheView& cache) {
  const std::vector<std::int64_t> shape{cache.rows, layout.num_heads, cache.capacity, layout.width};
  tensors.push_back({Role::kPastKey, cache.key, shape});
  tensors.push_back({Role::kPresentKey, cache.key, shape});
  tensors.push_back({Role::kPastValue, cache.value, shape});
  tensors.push_back({Role::kPresentValue, cache.value, shape});
}

}  // namespace skipdec::runtime
