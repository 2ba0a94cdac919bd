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
  std::vector<std::unique_ptr<Session>> layers;  // lowest first
  // The engines of drafts; nullptr until they are loaded.
  std::unique_ptr<Session> draft_states, draft_entry, draft_layer, trained_head, draft_head;
  // After how many layers prompts and passes keep states for trained drafts; empty until these are
  // loaded.
  std::vector<std::int64_t> reads;

  // Loads all engines except those of drafts. Throws the errors of `Backend::load`.
  static Engines load(const Manifest& manifest, Backend& backend);
  // Loads the trained drafts, whose weights no other engine has, or the narrow head; engines that
  // the bundle lacks stay nullptr. Throws the errors of `Backend::load` and
  // `Bundle::check_weights`.
  void load_trained_drafts(const Bundle& bundle, Backend& backend);
  void load_draft_head(const Bundle& bundle, Backend& backend);

  // The number of the model's layers, which is also the index of the draft layer's slots.
  std::int64_t num_layers() const { return static_cast<std::int64_t>(layers.size()); }
  Session& layer(std::int64_t number) const { return *layers[static_cast<std::size_t>(number)]; }
};

// Returns true for ONNX Runtime's attention, which takes several tokens with a past only for a
// single row.
bool runs_row_by_row(const Session& layer);

// Binds the tensors that the engine has and runs it once.
void run_once(Session& session, const std::vector<BoundTensor>& tensors);

// Adds each cache as past and present, so that the engine appends to it in place.
void add_cache(std::vector<BoundTensor>& tensors, const KVLayout& layout, const CacheView& cache);

}  // namespace skipdec::runtime
