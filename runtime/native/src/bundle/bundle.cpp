#include "bundle/bundle.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "bundle/directory.h"
#include "bundle/records.h"
#include "constants.h"
#include "errors.h"
#include "files/sha256.h"
#include "json/limits.h"
#include "texts.h"

namespace skipdec::runtime {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kExportAgain = "the bundle is damaged; export the model again";

std::string document_of(const HeldDirectory& directory, const std::string& name,
                        const std::string& remedy) {
  const Document blame{Status::kBundle, directory.path() + "/" + name, remedy};
  const std::string path = directory.locate(name);
  if (open_regular(path).is_missing) blame.refuse("", "is missing");
  return read_file(path, JsonLimits{}.max_bytes, blame);
}

struct Weights {
  std::set<std::string> used;  // files of engines that every text runs
  std::set<std::string> kept;  // files of canonical engines and of trained drafts
};

Weights weights_of(const Manifest& manifest) {
  Weights weights;
  const auto add = [](std::set<std::string>& paths, const EngineSpec& spec) {
    paths.insert(spec.weights.begin(), spec.weights.end());
  };
  add(weights.used, manifest.embed);
  add(weights.used, manifest.head);
  for (const EngineSpec& layer : manifest.layers) add(weights.used, layer);
  if (manifest.candidates) add(weights.used, *manifest.candidates);
  for (const EngineSpec& engine : manifest.canonical) add(weights.kept, engine);
  if (const auto& draft = manifest.trained_draft)
    for (const EngineSpec* spec : draft->engines()) add(weights.kept, *spec);
  return weights;
}

class OpenBundle final : public Bundle {
 public:
  OpenBundle(std::shared_ptr<const HeldDirectory> directory, Verify verify)
      : directory_(std::move(directory)),
        manifest_(Manifest::parse(document_of(*directory_, std::string(constants::kManifestName),
                                              "export the model again"),
                                  path() + "/manifest.json")),
        schedules_(Schedules::parse(document_of(*directory_, std::string(constants::kScheduleName),
                                                "write it with 'skipdec schedule set'"),
                                    manifest_.model.num_layers, path() + "/schedule.json",
                                    manifest_.model.max_seq_len)) {
    const Weights weights = weights_of(manifest_);
    const std::atomic<bool> is_stopped{false};
    std::vector<std::string> problems;
    std::vector<FileRecord> unhashed;
    for (const FileRecord& record : manifest_.files) {
      const bool is_used = weights.used.count(record.path) != 0;
      const bool is_hashed = !is_used && weights.kept.count(record.path) == 0;
      const std::string problem = record_problem(*directory_, record, is_hashed, is_stopped);
      if (!problem.empty()) problems.push_back(record.path + ": " + problem);
      if (is_used) unhashed.push_back(record);
    }
    require_none(std::move(problems));
    is_full_ = verify == Verify::kFull;
    if (is_full_) hashes_ = std::make_unique<FileHashes>(*directory_, std::move(unhashed));
  }

  const std::string& path() const override { return directory_->path(); }
  const Manifest& manifest() const override { return manifest_; }
  const Schedules& schedules() const override { return schedules_; }

  std::string locate(const std::string& relative) const override {
    return directory_->locate(listed(relative).path);
  }

  std::string read(const std::string& relative, std::size_t limit) const override {
    const FileRecord& record = listed(relative);
    if (record.size > limit)
      throw Error(
          Status::kBundle, path() + "/" + relative,
          "is larger than " + grouped(static_cast<std::int64_t>(limit)) + " bytes, the limit");
    const Document blame{Status::kBundle, path() + "/" + relative,
                         "if the bundle was replaced since it was opened, open it again"};
    std::string content = read_file(directory_->locate(relative), record.size, blame);
    if (content.size() != record.size || sha256_hex(content) != record.sha256)
      blame.refuse("", "is not the file that was checked");
    return content;
  }

  void check_weights(const EngineSpec& spec) const override {
    if (!is_full_) return;
    std::vector<FileRecord> records;
    records.reserve(spec.weights.size());
    for (const std::string& path : spec.weights) records.push_back(listed(path));
    require_none(FileHashes(*directory_, std::move(records)).problems());
  }

  void await_weights() const override {
    if (hashes_ != nullptr) require_none(hashes_->problems());
  }

 private:
  const FileRecord& listed(const std::string& relative) const {
    const auto& files = manifest_.files;
    const auto found = std::find_if(files.begin(), files.end(), [&](const FileRecord& record) {
      return record.path == relative;
    });
    if (found == files.end())
      throw Error(Status::kBundle, path(), "lists no file " + relative + " in manifest.json");
    return *found;
  }

  void require_none(std::vector<std::string> problems) const {
    if (problems.empty()) return;
    problems.emplace_back(kExportAgain);
    throw Error(Status::kBundle, path(), problems);
  }

  std::shared_ptr<const HeldDirectory> directory_;
  Manifest manifest_;
  Schedules schedules_;
  bool is_full_ = false;
  std::unique_ptr<FileHashes> hashes_;
};

// Describes what is at ``root`` instead of a bundle.
std::string otherwise(const fs::path& root) {
  std::error_code ignored;
  const std::string name = root.filename().string();
  const fs::path beside = root.parent_path();
  const bool is_partial = name.size() > 8 && name.compare(name.size() - 8, 8, ".partial") == 0;
  const fs::path unfinished = is_partial ? root : beside / ("." + name + ".partial");
  const bool exists = fs::exists(root, ignored);
  if (fs::is_directory(unfinished, ignored) && (is_partial || !exists))
    return "is an unfinished export (" + unfinished.filename().string() +
           "); run the export command again";
  if (!exists && fs::is_regular_file(beside / ("." + name + ".old") / "manifest.json", ignored))
    return "was being replaced when its writer was stopped; put it back by: skipdec inspect " +
           root.string();
  if (!exists) return "does not exist; allowed: a directory made by 'skipdec export'";
  if (!fs::is_directory(root, ignored))
    return "is not a directory; allowed: one made by 'skipdec export'";
  if (fs::is_regular_file(root / "config.json", ignored))
    return "is a checkpoint, not a bundle; run: skipdec export " + root.string();
  return "is not a bundle: it has no manifest.json; make a bundle with 'skipdec export'";
}

}  // namespace

std::shared_ptr<const Bundle> Bundle::open(const std::string& path, Verify verify) {
  constexpr int kAttempts = 10;  // to read a bundle that is being replaced repeatedly
  if (path.empty() || path.find('\0') != std::string::npos)
    throw Error(Status::kBundle, "bundle", "is not a path; allowed: a bundle's directory");
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const std::string root = without_links(path);
    std::error_code ignored;
    if (!fs::is_regular_file(root + "/manifest.json", ignored))
      throw Error(Status::kBundle, root, otherwise(root));
    const auto directory = std::make_shared<const HeldDirectory>(root);
    try {
      return std::make_shared<const OpenBundle>(directory, verify);
    } catch (const Error& error) {
      if (error.status() != Status::kBundle || !directory->was_touched()) throw;
    }
  }
  throw Error(
      Status::kBundle, path,
      "was replaced " + std::to_string(kAttempts) + " times while it was opened; try again later");
}

}  // namespace skipdec::runtime
