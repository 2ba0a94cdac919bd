// The loaded engines of a bundle: embed, layers, head.
#pragma once

#include <memory>
#include <vector>

#include "bundle/bundle.h"
#include "kv/cache_pair.h"
#include "sessions/session.h"

namespace skipdec::runtime {

// A layer is bypassed by not calling it. One thread at a time uses the sessions.
struct Engines {
  std::unique_ptr<Session> embed, head;
  std::vector<std::unique_ptr<Session>> layers;      // lowest first
  std::unique_ptr<Session> draft_layer, draft_head;  // nullptr until they are loaded

  // Loads all but the engines of drafts. Throws what `Backend::load` does.
  static Engines load(const Manifest& manifest, Backend& backend);
  // Loads the draft layer, whose weights no other engine has, or the narrow head, unless it was
  // loaded before; where the bundle has none it stays nullptr. Throws what `Backend::load` and
  // `Bundle::check_weights` do.
  void load_draft_layer(const Bundle& bundle, Backend& backend);
  void load_draft_head(const Bundle& bundle, Backend& backend);

  std::int64_t num_layers() const { return static_cast<std::int64_t>(layers.size()); }
};

// Binds the tensors that the engine has and runs it once.
void run_once(Session& session, const std::vector<BoundTensor>& tensors);

// Adds one buffer as past and present, to which the engine appends in place.
void add_cache(std::vector<BoundTensor>& tensors, const KVLayout& layout, const CacheView& cache);

}  // namespace skipdec::runtime
