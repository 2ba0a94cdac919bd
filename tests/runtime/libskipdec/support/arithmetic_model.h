// Engines without ONNX Runtime: a small integer model, exact in float32, in which every token
// depends on the whole contents of a row's caches, so that mixing up rows changes the output at
// once.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "errors.h"
#include "hollow_bundle.h"
#include "sessions/session.h"

namespace skipdec::runtime::support {

constexpr std::int64_t kHidden = 2;
constexpr std::int64_t kModulus = 251;  // sums of products stay far below 2^24
constexpr std::int64_t kVocabulary = 97;
constexpr std::int64_t kDraftTokens = 32;  // of the narrow head
constexpr std::int64_t kLayers = 6;
constexpr std::int64_t kPositions = 64;
// Memory in bytes for the KV caches of three blocks, less than some batches need.
constexpr std::int64_t kShortMemory = 3 * 4096 * 2 * kLayers;
constexpr std::int64_t kEndOfText = 2;

// Returns the JSON of a schedule of `kLayers` layers: from ``most`` layers down to ``least``, one
// fewer every ``period`` tokens; the lowest layer always runs, and those above it are bypassed
// first.
inline std::string falling_schedule(std::int64_t most, std::int64_t least, std::int64_t period) {
  nlohmann::json table = nlohmann::json::array();
  for (std::int64_t token = 0; token <= (most - least) * period; ++token)
    table.push_back(most - token / period);
  return nlohmann::json{{"num_layers", kLayers},   {"max_exit_layer", most},
                        {"min_exit_layer", least}, {"horizon", table.size()},
                        {"decay", "table"},        {"table", table}}
      .dump();
}

// Has a narrow head, and a draft layer that computes as layer 1 does and scores every third token.
// ``takes_one_row``: its layers take several tokens of one row only, as ONNX Runtime's attention.
class ArithmeticBundle : public Bundle {
 public:
  explicit ArithmeticBundle(bool takes_one_row = false)
      : schedules_(Schedules::parse(schedule_file(), kLayers, "schedule.json")) {
    manifest_.target = "arithmetic";
    ModelSpec& model = manifest_.model;
    model.name = "arithmetic";
    model.num_layers = kLayers;
    model.hidden_size = model.head_dim = manifest_.kv_width = kHidden;
    model.num_heads = model.num_kv_heads = 1;
    model.vocab_size = kVocabulary;
    model.max_seq_len = kPositions;
    model.eos_token_id = kEndOfText;
    model.end_token_ids = {kEndOfText};
    manifest_.embed.kind = EngineKind::kEmbed;
    manifest_.head.kind = EngineKind::kHead;
    manifest_.layers.resize(kLayers);
    std::int64_t number = 0;
    for (EngineSpec& layer : manifest_.layers) {
      layer.name = std::to_string(number++);
      if (takes_one_row) layer.inputs.push_back({"seqlens_k", Role::kSeqlensK, DType::kInt32, {}});
    }
    TrainedDraft& trained = manifest_.trained_draft.emplace();
    trained.reads = {2, 3, kLayers};
    for (std::int64_t token = 0; token < kVocabulary; token += 3)
      trained.token_ids.push_back(token);
    trained.states.kind = EngineKind::kStates;
    trained.entry.kind = EngineKind::kEntry;
    trained.layer = manifest_.layers[1];
    trained.head.kind = EngineKind::kHead;
    DraftHead& draft_head = manifest_.draft_head.emplace();
    draft_head.tokens = kDraftTokens;
    draft_head.engine.kind = EngineKind::kHead;
  }

  const std::string& path() const override { return path_; }
  const Manifest& manifest() const override { return manifest_; }
  const Schedules& schedules() const override { return schedules_; }
  std::string locate(const std::string& relative) const override { return relative; }
  std::string read(const std::string& /*relative*/, std::size_t /*limit*/) const override {
    return {};
  }
  void await_weights() const override {}
  void check_weights(const EngineSpec& /*spec*/) const override {}

 private:
  static std::string schedule_file() { return sealed(full_schedule()); }

  std::string path_ = "arithmetic";
  Manifest manifest_;
  Schedules schedules_;
};

// Counts the calls of all layers, and the rows that heads score. ``num_failing`` calls throw,
// beginning with call number ``failing`` (from 1; 0: none).
struct Calls {
  std::atomic<std::int64_t> made{0}, rows_scored{0};
  std::int64_t failing = 0, num_failing = 1;

  bool next_fails() {
    const std::int64_t number = ++made;
    return failing > 0 && number >= failing && number < failing + num_failing;
  }
};

class ArithmeticBinding : public Binding {
 public:
  ArithmeticBinding(const EngineSpec& spec, const std::vector<BoundTensor>& tensors, Calls& calls)
      : spec_(spec), calls_(calls) {
    for (const BoundTensor& tensor : tensors) tensors_.emplace(tensor.role, tensor);
  }

  void run() override {
    if (spec_.kind == EngineKind::kEmbed) return embed();
    if (spec_.kind == EngineKind::kHead) return head();
    if (spec_.kind == EngineKind::kStates || spec_.kind == EngineKind::kEntry) return join();
    if (calls_.next_fails()) throw Error(Status::kEngine, "engine", "fails by intent");
    layer(std::stoll(spec_.name));
  }

 private:
  template <class Element>
  Element* data(Role role) const {
    return static_cast<Element*>(tensors_.at(role).data);
  }
  std::int64_t size(Role role, std::size_t axis) const { return tensors_.at(role).shape.at(axis); }

  void embed() const {
    const std::int64_t count = size(Role::kInputIds, 0) * size(Role::kInputIds, 1);
    for (std::int64_t place = 0; place < count; ++place) {
      auto* const hidden = data<float>(Role::kHiddenStatesOut) + place * kHidden;
      hidden[0] = static_cast<float>(data<std::int64_t>(Role::kInputIds)[place]);
      hidden[1] = static_cast<float>(data<std::int64_t>(Role::kPositionIds)[place]);
    }
  }

  // Sums the cached keys and values up to the token's own position, each with a different weight.
  void layer(std::int64_t number) const {
    const std::int64_t rows = size(Role::kHiddenStates, 0);
    const std::int64_t tokens = size(Role::kHiddenStates, 1);
    const std::int64_t capacity = size(Role::kPastKey, 2);
    if (data<float>(Role::kHiddenStates) != data<float>(Role::kHiddenStatesOut) ||
        data<float>(Role::kPastKey) != data<float>(Role::kPresentKey)) {
      throw std::logic_error("not in place");
    }
    if (spec_.find(Role::kSeqlensK) != nullptr) check_lengths(rows, tokens);
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t token = 0; token < tokens; ++token) {
        const std::int64_t position = data<std::int64_t>(Role::kWriteIndices)[row] + token;
        if (position >= capacity) {
          if (token == 0) throw std::logic_error("written beyond the cache");
          continue;  // padding of a shorter row
        }
        float* const hidden = data<float>(Role::kHiddenStates) + (row * tokens + token) * kHidden;
        float* const keys = data<float>(Role::kPastKey) + row * capacity * kHidden;
        float* const values = data<float>(Role::kPastValue) + row * capacity * kHidden;
        keys[position * kHidden] = hidden[0];
        values[position * kHidden] = hidden[1];
        std::int64_t sum = number + 1;
        for (std::int64_t place = 0; place <= position; ++place) {
          const auto key = static_cast<std::int64_t>(keys[place * kHidden]);
          const auto value = static_cast<std::int64_t>(values[place * kHidden]);
          sum = (sum * 5 + key * (place + 1) + value) % kModulus;
        }
        const auto before = static_cast<std::int64_t>(hidden[0]);
        hidden[0] = static_cast<float>((before * 3 + sum) % kModulus);
        hidden[1] = static_cast<float>((sum * 7 + number) % kModulus);
      }
    }
  }

  // Checks that several tokens after the first belong to one row, and attention ends at the last.
  void check_lengths(std::int64_t rows, std::int64_t tokens) const {
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t start = data<std::int64_t>(Role::kWriteIndices)[row];
      if (start == 0) continue;
      if (rows > 1 && tokens > 1) throw std::logic_error("several tokens of several rows");
      const std::int64_t last = start + tokens - 1;
      if (data<std::int32_t>(Role::kSeqlensK)[row] != last)
        throw std::logic_error("attention ends elsewhere");
    }
  }

  // Mixes the states that are concatenated for each token.
  void join() const {
    const std::int64_t width = size(Role::kStates, 2);
    for (std::int64_t place = 0; place < size(Role::kStates, 0); ++place) {
      const float* const states = data<float>(Role::kStates) + place * width;
      float* const hidden = data<float>(Role::kHiddenStatesOut) + place * kHidden;
      std::int64_t sum = width;
      for (std::int64_t index = 0; index < width; ++index) {
        sum = (sum * 5 + static_cast<std::int64_t>(states[index])) % kModulus;
      }
      hidden[0] = static_cast<float>(sum);
      hidden[1] = static_cast<float>((sum * 7 + width) % kModulus);
    }
  }

  void head() const {
    const std::int64_t rows = size(Role::kRowPositions, 0);
    const std::int64_t tokens = size(Role::kLogits, 1);  // a narrow head scores the first ones
    calls_.rows_scored += rows;
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t place = data<std::int64_t>(Role::kRowPositions)[row];
      const float* const hidden = data<float>(Role::kHiddenStates) + place * kHidden;
      const auto seed = static_cast<std::int64_t>(hidden[0] * 17 + hidden[1]);
      for (std::int64_t token = 0; token < tokens; ++token) {
        data<float>(Role::kLogits)[row * tokens + token] =
            static_cast<float>((seed + token * 31) % kVocabulary) / 16;
      }
    }
  }

  const EngineSpec& spec_;
  Calls& calls_;
  std::map<Role, BoundTensor> tensors_;
};

class ArithmeticSession : public Session {
 public:
  ArithmeticSession(const EngineSpec& spec, Calls& calls) : spec_(spec), calls_(calls) {}

  const EngineSpec& spec() const override { return spec_; }
  std::unique_ptr<Binding> bind(const std::vector<BoundTensor>& tensors) override {
    return std::make_unique<ArithmeticBinding>(spec_, tensors, calls_);
  }

 private:
  const EngineSpec& spec_;
  Calls& calls_;
};

class ArithmeticBackend : public Backend {
 public:
  explicit ArithmeticBackend(std::int64_t failing = 0, std::int64_t num_failing = 1) {
    calls_.failing = failing;
    calls_.num_failing = num_failing;
  }

  std::unique_ptr<Session> load(const EngineSpec& spec) override {
    return std::make_unique<ArithmeticSession>(spec, calls_);
  }
  std::string description() const override { return "arithmetic"; }
  std::int64_t rows_scored() const { return calls_.rows_scored; }

 private:
  Calls calls_;
};

}  // namespace skipdec::runtime::support
