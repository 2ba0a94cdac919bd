#include "sessions/onnxruntime/backend.h"

#include <string>
#include <utility>

#include "errors.h"
#include "host/processor.h"
#include "sessions/onnxruntime/copied_weights.h"
#include "sessions/onnxruntime/process.h"
#include "sessions/onnxruntime/signature.h"

// Entry point of the linked kernels (engines/kernels/native/operators/register.cpp).
extern "C" skipdec::abi::Status* RegisterCustomOps(skipdec::abi::SessionOptions* options,
                                                   const skipdec::abi::ApiBase* base);
extern "C" const char* skipdec_instruction_set();
extern "C" const char* skipdec_instruction_sets();

namespace skipdec::runtime::onnxruntime {
namespace {

constexpr int kSequential = 0;       // ORT_SEQUENTIAL
constexpr int kDeviceAllocator = 0;  // OrtDeviceAllocator

using SharedProcessPointer = std::shared_ptr<const SharedProcess>;

class OrtBinding final : public Binding {
 public:
  OrtBinding(const Api& api, NativeSession* session, const RunOptions* run_options,
             const std::string& engine)
      : io(api.make<IoBinding>(kCreateIoBinding, session)),
        api_(api),
        session_(session),
        run_options_(run_options),
        engine_(engine) {}

  void run() override {
    try {
      const IoBinding* bound = io.get();
      api_.call(kRunWithBinding, session_, run_options_, bound);
    } catch (const Refusal& error) {
      throw Error(Status::kEngine, "engine " + engine_,
                  std::string("ONNX Runtime failed to run it: ") + error.what());
    }
  }

  Owned<IoBinding> io;

 private:
  const Api& api_;
  NativeSession* session_;
  const RunOptions* run_options_;
  const std::string& engine_;
};

class OrtSession final : public runtime::Session {
 public:
  OrtSession(EngineSpec spec, SharedProcessPointer process, CopiedWeights weights,
             Owned<NativeSession> session)
      : spec_(std::move(spec)),
        process_(std::move(process)),
        weights_(std::move(weights)),
        session_(std::move(session)),
        run_options_(api().make<RunOptions>(kCreateRunOptions)),
        memory_(api().make<MemoryInfo>(kCreateCpuMemoryInfo, kDeviceAllocator, kDefaultMemory)) {}

  const EngineSpec& spec() const override { return spec_; }

  std::unique_ptr<Binding> bind(const std::vector<BoundTensor>& tensors) override {
    try {
      auto binding =
          std::make_unique<OrtBinding>(api(), session_.get(), run_options_.get(), spec_.name);
      for (const TensorSpec& tensor : spec_.inputs)
        bind_one(kBindInput, binding->io.get(), tensor, tensors);
      for (const TensorSpec& tensor : spec_.outputs)
        bind_one(kBindOutput, binding->io.get(), tensor, tensors);
      return binding;
    } catch (const Refusal& error) {
      throw Error(Status::kEngine, "engine " + spec_.name,
                  std::string("ONNX Runtime refused its memory: ") + error.what());
    }
  }

 private:
  const Api& api() const { return process_->library().api; }

  void bind_one(Function<IoBinding*, const char*, const Value*> bind, IoBinding* io,
                const TensorSpec& wanted, const std::vector<BoundTensor>& tensors) const {
    const BoundTensor& given = given_for(wanted, tensors);
    std::size_t bytes = item_bytes(wanted.dtype);
    for (const std::int64_t size : given.shape) bytes *= static_cast<std::size_t>(size);
    const auto value = api().make<Value>(
        kCreateTensorWithDataAsOrtValue, static_cast<const MemoryInfo*>(memory_.get()), given.data,
        bytes, given.shape.data(), given.shape.size(), element_type(wanted.dtype));
    const Value* bound = value.get();  // the binding also holds it
    api().call(bind, io, wanted.name.c_str(), bound);
  }

  const BoundTensor& given_for(const TensorSpec& wanted,
                               const std::vector<BoundTensor>& tensors) const {
    for (const BoundTensor& tensor : tensors) {
      if (tensor.role != wanted.role) continue;
      bool fits = tensor.shape.size() == wanted.shape.size();
      for (std::size_t i = 0; fits && i < wanted.shape.size(); ++i)
        fits = tensor.shape[i] >= 0 &&
               (wanted.shape[i] == kSymbol || wanted.shape[i] == tensor.shape[i]);
      if (fits) return tensor;
      throw Error(Status::kInternal, "engine " + spec_.name,
                  "memory of another shape was bound to " + std::string(name_of(wanted.role)));
    }
    throw Error(Status::kInternal, "engine " + spec_.name,
                "nothing was bound to " + std::string(name_of(wanted.role)));
  }

  // The order of declaration matters: whatever a session uses must outlive it.
  EngineSpec spec_;
  SharedProcessPointer process_;
  CopiedWeights weights_;
  Owned<NativeSession> session_;
  Owned<RunOptions> run_options_;
  Owned<MemoryInfo> memory_;
};

class OrtBackend final : public Backend {
 public:
  OrtBackend(std::shared_ptr<const Bundle> bundle, SharedProcessPointer process,
             WeightsPlace weights)
      : bundle_(std::move(bundle)), process_(std::move(process)), weights_(weights) {}

  std::unique_ptr<runtime::Session> load(const EngineSpec& spec) override {
    const Api& api = process_->library().api;
    const std::string subject =
        "engine " + spec.name + " (" + bundle_->path() + "/" + spec.graph + ")";
    try {
      const Owned<SessionOptions> options = made_options();
      CopiedWeights weights;
      if (weights_ == WeightsPlace::kCopied && spec.kind != EngineKind::kEmbed) {
        const auto memory =
            api.make<MemoryInfo>(kCreateCpuMemoryInfo, kDeviceAllocator, kDefaultMemory);
        weights = copy_weights(*bundle_, spec, api, memory.get(), copies_, options.get());
      }
      auto session = api.make<NativeSession>(kCreateSession, process_->environment(),
                                             bundle_->locate(spec.graph).c_str(), options.get());
      std::vector<std::string> problems = signature_problems(api, session.get(), spec);
      if (!problems.empty()) {
        problems.emplace_back("export the model again");
        throw Error(Status::kBundle, subject, problems);
      }
      return std::make_unique<OrtSession>(spec, process_, std::move(weights), std::move(session));
    } catch (const Refusal& error) {
      refuse(subject, spec, error.what());
    }
  }

  std::string description() const override {
    const std::string name = "ONNX Runtime " + process_->library().version;
    return bundle_->manifest().uses_skipdec_kernels
               ? name + ", skipdec " + skipdec_instruction_set()
               : name;
  }

 private:
  Owned<SessionOptions> made_options() const {
    const Api& api = process_->library().api;
    auto options = api.make<SessionOptions>(kCreateSessionOptions);
    api.call(kSetSessionExecutionMode, options.get(), kSequential);
    api.call(kSetSessionLogSeverityLevel, options.get(), kErrorsOnly);
    api.call(kAddSessionConfigEntry, options.get(), "session.use_env_allocators", "1");
    if (integer_products_may_saturate())  // u8 x u8 does not, but is slower with VNNI
      api.call(kAddSessionConfigEntry, options.get(), "session.x64quantprecision", "1");
    const Manifest& manifest = bundle_->manifest();
    if (manifest.uses_skipdec_kernels && manifest.foreign_products.empty()) {
      // The kernels have the threads, because two spinning pools would compete.
      const std::string threads = std::to_string(process_->threads());
      api.call(kAddSessionConfigEntry, options.get(), "skipdec.threads", threads.c_str());
      api.call(kSetIntraOpNumThreads, options.get(), 1);
    } else {
      api.call(kDisablePerSessionThreads, options.get());
    }
    if (manifest.uses_skipdec_kernels)
      api.check(RegisterCustomOps(options.get(), process_->library().base));
    return options;
  }

  [[noreturn]] void refuse(const std::string& subject, const EngineSpec& spec,
                           std::string words) const {
    if (words.find("CreateEnvWithGlobalThreadPools") != std::string::npos)
      throw Error(Status::kEnvironment, "ONNX Runtime " + process_->library().version,
                  "was set up by this program without a shared pool of threads (" + words +
                      "); open skipdec first, or name another copy of the library by "
                      "SKIPDEC_ONNXRUNTIME");
    const std::string located = bundle_->locate(spec.graph);
    const std::string root = located.substr(0, located.size() - spec.graph.size());
    for (std::size_t at = words.find(root); at != std::string::npos; at = words.find(root, at + 1))
      words.replace(at, root.size(), bundle_->path() + "/");
    throw Error(Status::kBundle, subject, "ONNX Runtime can't load it: " + words);
  }

  std::shared_ptr<const Bundle> bundle_;
  SharedProcessPointer process_;
  WeightsPlace weights_;
  FileCopies copies_;
};

void check_instruction_set() {
  if (skipdec_instruction_set() == nullptr)
    throw Error(Status::kEnvironment, "SKIPDEC_INSTRUCTION_SET",
                std::string("names what can't run here; on this processor it may be one of: ") +
                    skipdec_instruction_sets() + ", or unset for the first of them");
}

}  // namespace

std::shared_ptr<Backend> open_backend(const std::shared_ptr<const Bundle>& bundle,
                                      const runtime::SessionOptions& options) {
  const Manifest& manifest = bundle->manifest();
  if (manifest.hidden_dtype == DType::kBfloat16)
    throw Error(Status::kBundle, bundle->path(),
                "computes in bfloat16, which ONNX Runtime's operators can't on a CPU; export the "
                "model again with --kernels skipdec, which keep such weights as they are");
  if (options.weights == WeightsPlace::kCopied && !manifest.uses_skipdec_kernels)
    throw Error(Status::kUsage, "weights",
                "are to be copied, but the bundle runs on ONNX Runtime's operators, which copy "
                "weights into their own layout; leave it out");
  check_instruction_set();  // kernels draw the tokens of any bundle
  const Library& library = load_library(options.onnxruntime);
  return std::make_shared<OrtBackend>(bundle, SharedProcess::get(library, options.threads),
                                      options.weights);
}

}  // namespace skipdec::runtime::onnxruntime
