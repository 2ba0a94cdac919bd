#include "sessions/onnxruntime/copied_weights.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <stdexcept>

#include "errors.h"
#include "files/read.h"
#include "sessions/onnxruntime/initializers.h"
#include "texts.h"

namespace skipdec::runtime::onnxruntime {
namespace {

constexpr std::size_t kHugePage = std::size_t{1} << 21;
constexpr std::size_t kMaxGraph = INT32_MAX;  // bytes, as protobuf allows

[[noreturn]] void refuse(const Bundle& bundle, const std::string& file,
                         const std::string& problem) {
  throw Error(Status::kBundle, bundle.path(),
              {file + ": " + problem, "the bundle is damaged; export the model again"});
}

std::shared_ptr<const HugePages> content_of(const Bundle& bundle, const std::string& path) {
  const std::vector<FileRecord>& files = bundle.manifest().files;
  const auto record = std::find_if(files.begin(), files.end(),
                                   [&](const FileRecord& each) { return each.path == path; });
  const Opened opened = open_regular(bundle.locate(path));
  if (!opened.problem.empty()) refuse(bundle, path, "can't be read (" + opened.problem + ")");
  auto content = std::make_shared<HugePages>(record->size);
  for (std::size_t filled = 0; filled < content->size();) {
    const ssize_t count =
        ::read(opened.file.number(), content->data() + filled, content->size() - filled);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) refuse(bundle, path, "can't be read (" + system_words(errno) + ")");
    if (count == 0) {
      refuse(bundle, path,
             "has " + grouped(static_cast<std::int64_t>(filled)) + " bytes; expected " +
                 grouped(static_cast<std::int64_t>(record->size)));
    }
    filled += static_cast<std::size_t>(count);
  }
  return content;
}

}  // namespace

HugePages::HugePages(std::size_t size) : mapped_(size + kHugePage), size_(size) {
  void* mapping =
      ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED)
    throw Error(Status::kMemory, "memory of this machine",
                "has no " + grouped(static_cast<std::int64_t>(size)) +
                    " bytes for a copy of weights; map them");
  mapping_ = static_cast<char*>(mapping);
  const auto address = reinterpret_cast<std::uintptr_t>(mapping);
  data_ = mapping_ + (kHugePage - address % kHugePage) % kHugePage;
  ::madvise(data_, size_, MADV_HUGEPAGE);  // falls back to small pages
}

HugePages::~HugePages() { ::munmap(mapping_, mapped_); }

std::shared_ptr<const HugePages> FileCopies::content(const Bundle& bundle,
                                                     const std::string& path) {
  const std::scoped_lock lock(changing_);
  std::shared_ptr<const HugePages> found = held_[path].lock();
  if (found == nullptr) held_[path] = found = content_of(bundle, path);
  return found;
}

CopiedWeights copy_weights(const Bundle& bundle, const EngineSpec& spec, const Api& api,
                           const MemoryInfo* memory, FileCopies& copies, SessionOptions* options) {
  const std::size_t slash = spec.graph.find_last_of('/');
  const std::string folder = slash == std::string::npos ? "" : spec.graph.substr(0, slash + 1);
  CopiedWeights weights;
  std::map<std::string, const HugePages*> files;
  for (const std::string& path : spec.weights)
    files[path] = weights.files.emplace_back(copies.content(bundle, path)).get();
  try {
    for (const ExternalTensor& tensor : external_tensors(bundle.read(spec.graph, kMaxGraph))) {
      const auto found = files.find(folder + tensor.file);
      if (found == files.end()) throw std::invalid_argument("no file " + tensor.file);
      const HugePages& file = *found->second;
      if (tensor.offset > file.size() || tensor.size > file.size() - tensor.offset)
        throw std::invalid_argument(tensor.name + " lies beyond the end of " + tensor.file);
      weights.values.push_back(api.make<Value>(
          kCreateTensorWithDataAsOrtValue, memory, file.data() + tensor.offset, tensor.size,
          tensor.shape.data(), tensor.shape.size(), tensor.element_type));
      api.call(kAddInitializer, options, tensor.name.c_str(), weights.values.back().get());
    }
  } catch (const std::invalid_argument& error) {
    refuse(bundle, "engine " + spec.name,
           std::string("its weights can't be found (") + error.what() + ")");
  }
  return weights;
}

}  // namespace skipdec::runtime::onnxruntime
