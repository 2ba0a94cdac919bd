// Memory for one call of a bundle's engines, with fixed inputs.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <utility>
#include <vector>

#include "sessions/session.h"

namespace skipdec::runtime {

class EngineCall {
 public:
  EngineCall(const Manifest& manifest, std::int64_t rows, std::int64_t tokens)
      : manifest_(manifest), rows_(rows), tokens_(tokens) {
    const ModelSpec& model = manifest.model;
    const std::vector<std::int64_t> each{rows, tokens};
    std::vector<std::int64_t> ids, positions, last, starts(rows, 0);
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t token = 0; token < tokens; ++token) {
        ids.push_back((7 * row + 3 * token + 5) % model.vocab_size);
        positions.push_back(token);
      }
      last.push_back((row + 1) * tokens - 1);
    }
    put(Role::kInputIds, each, ids);
    put(Role::kPositionIds, each, positions);
    put(Role::kRowPositions, {rows}, last);
    put(Role::kWriteIndices, {rows}, starts);
    put(Role::kSeqlensK, {rows},
        std::vector<std::int32_t>(rows, static_cast<std::int32_t>(tokens - 1)));
    put(Role::kTotalSequenceLength, {}, std::vector<std::int32_t>{static_cast<int>(tokens)});
    const std::vector<std::int64_t> hidden{rows, tokens, model.hidden_size};
    make(Role::kHiddenStates, hidden, item_bytes(manifest.hidden_dtype));
    make(Role::kLogits, {rows, model.vocab_size}, sizeof(float));
  }

  // Returns memory for all roles; another ``layer`` gets new caches.
  std::vector<BoundTensor> tensors(std::int64_t layer = 0) {
    const std::vector<std::int64_t> cache{rows_, manifest_.model.num_kv_heads, tokens_,
                                          manifest_.kv_width};
    if (layer != layer_) {
      make(Role::kPastKey, cache, item_bytes(manifest_.kv_dtype));
      make(Role::kPastValue, cache, item_bytes(manifest_.kv_dtype));
      layer_ = layer;
    }
    std::vector<BoundTensor> bound;
    for (auto& [role, buffer] : buffers_)
      bound.push_back({role, buffer.bytes.data(), buffer.shape});
    for (const auto& [role, same] : {std::pair{Role::kHiddenStatesOut, Role::kHiddenStates},
                                     std::pair{Role::kPresentKey, Role::kPastKey},
                                     std::pair{Role::kPresentValue, Role::kPastValue}})
      bound.push_back({role, buffers_[same].bytes.data(), buffers_[same].shape});
    return bound;
  }

  void write(std::ofstream& file, Role role) {
    file.write(buffers_[role].bytes.data(),
               static_cast<std::streamsize>(buffers_[role].bytes.size()));
  }

 private:
  struct Buffer {
    std::vector<std::int64_t> shape;
    std::vector<char> bytes;
  };

  template <class Element>
  void put(Role role, const std::vector<std::int64_t>& shape, const std::vector<Element>& values) {
    const char* bytes = reinterpret_cast<const char*>(values.data());
    buffers_[role] = {shape, std::vector<char>(bytes, bytes + values.size() * sizeof(Element))};
  }

  void make(Role role, const std::vector<std::int64_t>& shape, std::size_t bytes) {
    for (const std::int64_t size : shape) bytes *= static_cast<std::size_t>(size);
    buffers_[role] = {shape, std::vector<char>(bytes)};
  }

  const Manifest& manifest_;
  std::int64_t rows_, tokens_, layer_ = -1;
  std::map<Role, Buffer> buffers_;
};

}  // namespace skipdec::runtime
