// run_engines BUNDLE ROWS TOKENS mapped|copied OUTPUT: one call of every engine of a bundle on
// fixed inputs; writes what hidden states, caches and logits hold afterwards, byte for byte.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bundle/bundle.h"
#include "sessions/session.h"

namespace {

using namespace skipdec::runtime;

struct Buffer {
  std::vector<std::int64_t> shape;
  std::vector<char> bytes;
};

class Call {
 public:
  Call(const Manifest& manifest, std::int64_t rows, std::int64_t tokens)
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

void run(const std::string& path, std::int64_t rows, std::int64_t tokens, WeightsPlace weights,
         const std::string& output) {
  const auto bundle = Bundle::open(path, Verify::kFull);
  const Manifest& manifest = bundle->manifest();
  SessionOptions options;
  options.weights = weights;
  const auto backend = Backend::open(bundle, options);
  std::printf("%s\n", backend->description().c_str());
  std::ofstream file(output, std::ios::binary);
  Call call(manifest, rows, tokens);
  backend->load(manifest.embed)->bind(call.tensors())->run();
  call.write(file, Role::kHiddenStates);
  std::int64_t layer = 0;
  for (const EngineSpec& spec : manifest.layers) {
    backend->load(spec)->bind(call.tensors(layer++))->run();
    for (const Role role : {Role::kHiddenStates, Role::kPastKey, Role::kPastValue})
      call.write(file, role);
  }
  backend->load(manifest.head)->bind(call.tensors(layer))->run();
  call.write(file, Role::kLogits);
  bundle->await_weights();
}

}  // namespace

int main(int count, char** words) {
  try {
    if (count != 6) throw std::invalid_argument("BUNDLE ROWS TOKENS mapped|copied OUTPUT");
    const bool is_copied = std::string(words[4]) == "copied";
    run(words[1], std::stoll(words[2]), std::stoll(words[3]),
        is_copied ? WeightsPlace::kCopied : WeightsPlace::kMapped, words[5]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
