// host_share: measures the cost of a decode step without the engines' own time, in microseconds.
//
// Engines that do nothing replace real ones, so that only the runtime's work remains: choosing the
// plan, positions, bindings, the greedy token, stop rules and deltas. Prints one line for each
// number of layers and rows.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "arithmetic_model.h"
#include "scheduling/clock.h"
#include "scheduling/running_batch.h"

namespace skipdec::runtime::testing {
namespace {

constexpr std::int64_t kMostPositions = 2048;

class Nothing : public Binding {
 public:
  void run() override {}
};

class IdleSession : public Session {
 public:
  explicit IdleSession(const EngineSpec& spec) : spec_(spec) {}
  const EngineSpec& spec() const override { return spec_; }
  std::unique_ptr<Binding> bind(const std::vector<BoundTensor>& tensors) override {
    for (const BoundTensor& tensor : tensors) {
      if (tensor.role != Role::kLogits) continue;  // uninitialised logits end rows at random
      const std::int64_t count = std::accumulate(tensor.shape.begin(), tensor.shape.end(),
                                                 std::int64_t{1}, std::multiplies<>());
      std::fill_n(static_cast<float*>(tensor.data), count, 0.0F);
    }
    return std::make_unique<Nothing>();
  }

 private:
  const EngineSpec& spec_;
};

class IdleBackend : public Backend {
 public:
  std::unique_ptr<Session> load(const EngineSpec& spec) override {
    return std::make_unique<IdleSession>(spec);
  }
  std::string description() const override { return "idle"; }
};

double microseconds_a_step(std::int64_t layers, std::int64_t rows) {
  Manifest manifest = ArithmeticBundle().manifest();
  manifest.model.num_layers = layers;
  manifest.model.max_seq_len = kMostPositions;
  manifest.layers.resize(static_cast<std::size_t>(layers));
  LayerPlan all(static_cast<std::size_t>(layers));
  std::iota(all.begin(), all.end(), 0);
  const auto schedule = std::make_shared<const Schedule>(layers, std::vector<Segment>{{0, all}},
                                                         PromptRule{}, "full");
  IdleBackend backend;
  const Engines engines = Engines::load(manifest, backend);
  RunningBatchConfig config;
  config.max_batch_size = rows;
  config.kv_memory = std::int64_t{1} << 32;
  RunningBatch batch(manifest, engines, nullptr, config);
  for (std::int64_t row = 0; row < rows; ++row) {
    Request request;
    request.prompt = {4, 5};
    request.params.temperature = 0;
    request.params.ignore_eos = true;
    request.max_tokens = request.params.max_tokens = kMostPositions - 8;
    request.schedule = schedule;
    batch.add(row, request, 0);
  }
  for (int step = 0; step < 64; ++step) batch.step(0);
  std::vector<double> times;
  for (int block = 0; block < 50; ++block) {
    constexpr int kSteps = 32;
    const double start = seconds_now();
    for (int step = 0; step < kSteps; ++step) batch.step(0);
    times.push_back((seconds_now() - start) / kSteps * 1e6);
  }
  if (batch.stats().running != rows) throw std::runtime_error("a row ended while it was measured");
  std::nth_element(times.begin(), times.begin() + 25, times.end());
  return times[25];
}

}  // namespace
}  // namespace skipdec::runtime::testing

int main() {
  for (const std::int64_t rows : {1, 8}) {
    for (const std::int64_t layers : {12, 24, 48}) {
      std::printf("%ld rows, %ld layers: %.2f us\n", rows, layers,
                  skipdec::runtime::testing::microseconds_a_step(layers, rows));
    }
  }
}
