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
