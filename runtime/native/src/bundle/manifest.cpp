#include "bundle/manifest.h"

#include <algorithm>
#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "bundle/contract.h"
#include "bundle/engine_fields.h"
#include "bundle/names.h"
#include "constants.h"
#include "files/digest.h"
#include "json/canonical.h"
#include "json/fields.h"
#include "json/tree.h"
#include "texts.h"

namespace skipdec::runtime {
namespace {

using nlohmann::json;

using constants::kFormatVersion;
using constants::kKvScaleBytes;
using constants::kMaxLayers;
using constants::kMaxTokens;
using constants::kMaxWidth;
using constants::kPromptPlaceholder;
constexpr std::int64_t kMostBytes = INT64_MAX;
constexpr std::int64_t kAnyInteger = INT64_MIN;
constexpr std::size_t kMostEngines = kMaxLayers + 2;
constexpr std::size_t kNumRead = 3;  // depths at which trained drafts read states
constexpr std::size_t kMostFiles = std::size_t{1} << 17;

// Reads a text that must be one of ``allowed``.
template <std::size_t size>
std::string choice(Fields& fields, const char* name,
                   const std::array<std::string_view, size>& allowed, const std::string& text) {
  if (std::find(allowed.begin(), allowed.end(), text) != allowed.end()) return text;
  fields.refuse(name, "is " + shown(fields.value(name)) + "; allowed: " + joined(allowed));
}

void check_version(const json& document, const Document& blame) {
  const auto found = document.is_object() ? document.find("format_version") : document.end();
  const std::string seen = found == document.end() ? "missing" : shown(*found);
  if (seen == std::to_string(kFormatVersion)) return;
  throw Error(Status::kBundle, blame.subject,
              "has format version " + seen + "; this skipdec reads " +
                  std::to_string(kFormatVersion) +
                  "; export the model again or install the skipdec that wrote it");
}

// Returns all tokens that end a text: those of the member, else eos_token_id, if there is one.
std::vector<std::int64_t> ends_of(Fields& fields, const ModelSpec& model,
                                  const Document& document) {
  std::vector<std::int64_t> ends;
  const json* given = fields.find_given("end_token_ids");
  if (given == nullptr) {
    if (model.eos_token_id) ends.push_back(*model.eos_token_id);
    return ends;
  }
  const std::string place = fields.place_of("end_token_ids");
  for (const json& entry : array_of(*given, place, constants::kMaxEndTokens, document))
    ends.push_back(integer_of(entry, place, 0, model.vocab_size - 1, document));
  const bool is_distinct = std::set<std::int64_t>(ends.begin(), ends.end()).size() == ends.size();
  if (ends.size() < 2 || !is_distinct || ends.front() != model.eos_token_id)
    fields.refuse("end_token_ids",
                  "is " + shown(*given) + "; allowed: eos_token_id and then others, each once");
  return ends;
}

ModelSpec model_of(const json& value, const Document& document) {
  Fields fields(value, "model", document);
  ModelSpec model;
  fields.text("family", "opt");
  model.name = fields.text("name");
  model.num_layers = fields.integer("num_layers", 1, kMaxLayers);
  model.hidden_size = fields.integer("hidden_size", 1, kMaxWidth);
  model.num_heads = fields.integer("num_heads", 1, kMaxWidth);
  model.num_kv_heads = fields.integer("num_kv_heads", 1, kMaxWidth, model.num_heads);
  model.head_dim = fields.integer("head_dim", 1, kMaxWidth, model.hidden_size / model.num_heads);
  if (model.head_dim < 1)
    fields.refuse("num_heads", "is " + std::to_string(model.num_heads) +
                                   "; allowed: 1 to hidden_size, which is " +
                                   std::to_string(model.hidden_size));
  model.vocab_size = fields.integer("vocab_size", 1, kMaxTokens);
  fields.integer("max_position_embeddings", 1, kMaxTokens);
  model.max_seq_len = fields.integer("max_seq_len", 1, kMaxTokens);
  fields.boolean("tie_word_embeddings", true);
  fields.optional_integer("bos_token_id", kAnyInteger, INT64_MAX);
  model.eos_token_id = fields.optional_integer("eos_token_id", 0, model.vocab_size - 1);
  fields.optional_integer("pad_token_id", kAnyInteger, INT64_MAX);
  model.end_token_ids = ends_of(fields, model, document);
  if (const json* defaults = fields.find_given("sampling_defaults"))
    model.sampling_defaults = SamplingDefaults::of(*defaults, document);
  for (const auto& member : value.items())  // a family may have fields of its own
    if (member.value().is_structured() && member.key() != "end_token_ids" &&
        member.key() != "sampling_defaults")
      fields.refuse(member.key().c_str(), "is " + shown(member.value()) +
                                              "; allowed: a number, a text, true, false, null");
  return model;
}

// Returns true if skipdec's kernels have products of such blocks.
bool has_kernel_blocks(std::optional<std::int64_t> block_size,
                       std::optional<std::int64_t> accuracy_level) {
  const bool has_size = block_size == 32 || block_size == 64 || block_size == 128;
  return has_size && accuracy_level == 4;
}

void add_once(std::vector<std::string>& texts, const std::string& text) {
  if (std::find(texts.begin(), texts.end(), text) == texts.end()) texts.push_back(text);
}

void read_precision(Fields& members, Manifest& manifest, const Document& document) {
  Fields fields(members.value("precision"), "precision", document);
  const std::string dtype =
      choice(fields, "dtype", constants::kFloatTypes, fields.text("dtype", "float32"));
  std::vector<std::string> quantizations;
  for (const char* name : {"quantize", "head_quantize"}) {
    quantizations.push_back(
        choice(fields, name, constants::kQuantizations, fields.text(name, "none")));
  }
  const auto block_size = fields.optional_integer("block_size", kAnyInteger, INT64_MAX);
  const auto accuracy_level = fields.optional_integer("accuracy_level", kAnyInteger, INT64_MAX);
  const bool has_kernels = has_kernel_blocks(block_size, accuracy_level);
  for (const std::string& quantize : quantizations) {
    if ((quantize == "int8-block" || quantize == "int4") && !has_kernels)
      add_once(manifest.foreign_products, quantize);
  }
  if (const json* ranges = fields.find("activation_ranges"))
    sha256_of(*ranges, fields.place_of("activation_ranges"), document);
  const std::optional<std::string> kv_dtype = fields.optional_text("kv_dtype");
  if (kv_dtype) choice(fields, "kv_dtype", constants::kKvTypes, *kv_dtype);
  if (kv_dtype && !manifest.uses_skipdec_kernels)
    fields.refuse("kv_dtype", "is " + *kv_dtype +
                                  " without kernels that read a KV cache of another type than the "
                                  "activations; allowed with the kernels skipdec");
  const std::optional<std::string> table_dtype = fields.optional_text("table_dtype");
  if (table_dtype) choice(fields, "table_dtype", constants::kFloatTypes, *table_dtype);
  if (table_dtype && !manifest.uses_skipdec_kernels)
    fields.refuse("table_dtype", "is " + *table_dtype + "; allowed with the kernels skipdec");
  const DType weights = dtype_called(dtype).value_or(DType::kFloat32);
  manifest.hidden_dtype = manifest.uses_skipdec_kernels ? DType::kFloat32 : weights;
  manifest.kv_dtype = kv_dtype ? dtype_called(*kv_dtype).value_or(weights) : weights;
  manifest.kv_width =
      manifest.model.head_dim + (manifest.kv_dtype == DType::kInt8 ? kKvScaleBytes : 0);
}

// Checks the limits of TensorRT's plans, and reads their capacities.
void read_build(const json& value, Manifest& manifest, const Document& document) {
  constexpr std::size_t kMostBuckets = 4096;
  constexpr std::int64_t kHighestLevel = 5;
  Fields fields(value, "build", document);
  fields.text("version");
  fields.text("compute_capability");
  fields.optional_text("driver");
  fields.integer("max_batch_size", 1, kMaxWidth);
  fields.integer("max_prompt_len", 1, kMaxTokens);
  fields.integer("max_prefill_rows", 1, kMaxWidth);
  std::int64_t least = 1;
  for (const json& capacity : fields.array("kv_buckets", kMostBuckets)) {
    manifest.kv_buckets.push_back(
        integer_of(capacity, fields.place_of("kv_buckets"), least, kMaxTokens, document));
    least = manifest.kv_buckets.back() + 1;
  }
  if (manifest.kv_buckets.empty()) fields.refuse("kv_buckets", "is empty; allowed: 1 or more");
  fields.integer("optimization_level", 0, kHighestLevel);
  fields.optional_integer("workspace", 0, kMostBytes);
  fields.boolean("hardware_compatible", false);
  fields.boolean("version_compatible", false);
}

void read_files(const json& array, Manifest& manifest, const Document& document) {
  for (const json& entry : array) {
    Fields fields(entry, "files." + std::to_string(manifest.files.size()), document);
    FileRecord& record = manifest.files.emplace_back();
    record.path = path_of(fields.value("path"), fields.place_of("path"), document);
    record.size = static_cast<std::uint64_t>(fields.integer("size", 0, kMostBytes));
    record.sha256 = sha256_of(fields.value("sha256"), fields.place_of("sha256"), document);
  }
}

// Reads "embed", "layer_000", …, "head": one of each, in this order.
void read_engines(const json& array, Manifest& manifest, const Document& document) {
  const auto count = static_cast<std::size_t>(manifest.model.num_layers) + 2;
  if (array.size() != count)
    document.refuse("engines", "has " + std::to_string(array.size()) +
                                   " entries; expected: " + std::to_string(count));
  for (std::size_t i = 0; i < count; ++i) {
    const std::string place = "engines." + std::to_string(i);
    EngineEntry entry = engine_of(array[i], place, document);
    const bool is_layer = i != 0 && i + 1 != count;
    std::string digits = is_layer ? std::to_string(i - 1) : "";
    if (is_layer) digits.insert(0, std::max<std::size_t>(digits.size(), 3) - digits.size(), '0');
    const std::string name = is_layer ? "layer_" + digits : i == 0 ? "embed" : "head";
    const EngineKind kind = is_layer ? EngineKind::kLayer
                            : i == 0 ? EngineKind::kEmbed
                                     : EngineKind::kHead;
    const auto index = is_layer ? std::optional(static_cast<std::int64_t>(i) - 1) : std::nullopt;
    require_engine(entry, place, name, kind, index, document);
    (is_layer ? manifest.layers.emplace_back()
     : i == 0 ? manifest.embed
              : manifest.head) = std::move(entry.spec);
  }
}

// Reads three numbers of layers and the tokens of a head; both ascend, tokens without repeats.
void read_trained_draft(const json& value, Manifest& manifest, const Document& document) {
  Fields fields(value, "trained_draft", document);
  TrainedDraft& draft = manifest.trained_draft.emplace();
  for (const json& depth : fields.array("reads", kNumRead))
    draft.reads.push_back(integer_of(depth, fields.place_of("reads"), 1, kMaxLayers, document));
  for (const json& token : fields.array("token_ids", kMaxTokens))
    draft.token_ids.push_back(
        integer_of(token, fields.place_of("token_ids"), 0, kMaxTokens - 1, document));
  if (draft.reads.size() != kNumRead) fields.refuse("reads", "has too few entries; expected: 3");
  if (draft.token_ids.empty()) fields.refuse("token_ids", "is empty; allowed: 1 or more");
  using constants::kDraftEntry, constants::kDraftLayer, constants::kDraftStates,
      constants::kTrainedHead;
  draft.states = named_engine_of(fields, "states", kDraftStates, EngineKind::kStates, document);
  draft.entry = named_engine_of(fields, "entry", kDraftEntry, EngineKind::kEntry, document);
  draft.layer = named_engine_of(fields, "layer", kDraftLayer, EngineKind::kLayer, document);
  draft.head = named_engine_of(fields, "head", kTrainedHead, EngineKind::kHead, document);
  const std::int64_t layers = manifest.model.num_layers, tokens = manifest.model.vocab_size;
  if (!std::is_sorted(draft.reads.begin(), draft.reads.end()) || draft.reads.back() > layers)
    document.refuse("", "trained_draft reads states after " +
                            joined(draft.reads, [](auto depth) { return std::to_string(depth); }) +
                            " layers; allowed: ascending, up to the model's " +
                            std::to_string(layers));
  const bool repeats = std::adjacent_find(draft.token_ids.begin(), draft.token_ids.end(),
                                          std::greater_equal<>()) != draft.token_ids.end();
  if (repeats || draft.token_ids.back() >= tokens)
    document.refuse("", "trained_draft has " + std::to_string(draft.token_ids.size()) +
                            " token_ids; allowed: ascending, each once, below the model's " +
                            std::to_string(tokens));
}

void read_draft_head(const json& value, Manifest& manifest, const Document& document) {
  Fields fields(value, "draft_head", document);
  DraftHead& draft = manifest.draft_head.emplace();
  draft.tokens = fields.integer("tokens", 1, kMaxTokens);
  draft.engine =
      named_engine_of(fields, "engine", constants::kDraftHead, EngineKind::kHead, document);
  if (draft.tokens >= manifest.model.vocab_size)
    document.refuse("", "draft_head has " + std::to_string(draft.tokens) +
                            " tokens; allowed: fewer than " +
                            std::to_string(manifest.model.vocab_size) + ", the model's vocabulary");
  const std::vector<std::string>& whole = manifest.head.weights;
  for (const std::string& path : draft.engine.weights)
    if (std::find(whole.begin(), whole.end(), path) == whole.end())
      document.refuse("", "draft_head reads " + joined(draft.engine.weights) +
                              "; allowed: only the head's weights, " + joined(whole));
}

// Refuses engines that name files that are not ``known``.
void require_listed(const Manifest& manifest, const std::set<std::string_view>& known,
                    const Document& document) {
  const auto check = [&](const EngineSpec& spec) {
    std::vector<std::string> paths = spec.weights;
    paths.insert(paths.begin(), spec.graph);
    for (const KVBucket& bucket : spec.buckets) paths.push_back(bucket.graph);
    for (const std::string& path : paths)
      if (known.count(path) == 0)
        document.refuse("engine " + spec.name, "names " + path + ", not listed in files");
  };
  check(manifest.embed);
  for (const EngineSpec& layer : manifest.layers) check(layer);
  check(manifest.head);
  if (manifest.candidates) check(*manifest.candidates);
  if (const auto& draft = manifest.trained_draft)
    for (const EngineSpec* spec : draft->engines()) check(*spec);
  if (manifest.draft_head) check(manifest.draft_head->engine);
  for (const EngineSpec& spec : manifest.canonical) check(spec);
}

// Checks that ``name`` is an object of texts, and returns its text at ``key``, if any.
std::optional<std::string> text_in(Fields& fields, const char* name, const std::string& key,
                                   const Document& document) {
  const json* found = fields.find_given(name);
  if (found == nullptr) return std::nullopt;
  if (!found->is_object()) fields.refuse(name, "is " + shown(*found) + "; allowed: an object");
  for (const auto& member : found->items())
    text_of(member.value(), fields.place_of(name) + "." + member.key(), document);
  if (!found->contains(key)) return std::nullopt;
  return found->at(key).get<std::string>();
}

// Checks the special tokens, texts or lists of texts, for programs that render chats.
void check_special_tokens(Fields& chat, const Document& document) {
  const char* name = "special_tokens";
  const json* tokens = chat.find_given(name);
  if (tokens == nullptr) return;
  if (!tokens->is_object()) chat.refuse(name, "is " + shown(*tokens) + "; allowed: an object");
  for (const auto& member : tokens->items()) {
    const std::string place = chat.place_of(name) + "." + member.key();
    if (!member.value().is_array()) {
      text_of(member.value(), place, document);
      continue;
    }
    for (const json& text : member.value()) text_of(text, place, document);
  }
}

void read_texts(Fields& fields, Manifest& manifest, const Document& document) {
  if (const json* path = fields.find("tokenizer"))
    manifest.tokenizer = path_of(*path, "tokenizer", document);
  if (const json* path = fields.find("ngrams"))
    manifest.ngrams = path_of(*path, "ngrams", document);
  manifest.prompt_template = fields.optional_text("prompt_template");
  if (const auto& text = manifest.prompt_template) {
    const std::size_t first = text->find(kPromptPlaceholder);
    if (first == std::string::npos ||
        text->find(kPromptPlaceholder, first + 1) != std::string::npos)
      fields.refuse("prompt_template",
                    "is " + shown(json(*text)) + "; allowed: a text with {prompt} once");
  }
  if (const json* chat = fields.find("chat_template")) {
    Fields named(*chat, "chat_template", document);
    manifest.chat_template = path_of(named.value("path"), named.place_of("path"), document);
    check_special_tokens(named, document);
  }
  text_in(fields, "tool_versions", "", document);
  const std::string key(constants::kTunedSchedule);
  const std::optional<std::string> tuned = text_in(fields, "source", key, document);
  manifest.is_tuned = tuned.has_value();
  manifest.exits_early = tuned == constants::kEarlyExit;
}

}  // namespace

const TensorSpec* EngineSpec::find(Role role) const {
  for (const auto* tensors : {&inputs, &outputs})
    for (const TensorSpec& tensor : *tensors)
      if (tensor.role == role) return &tensor;
  return nullptr;
}

Manifest Manifest::parse(std::string_view text, const std::string& subject) {
  const Document document{Status::kBundle, subject, "export the model again"};
  const json value = parse_json(text, document);
  check_version(value, document);
  Manifest manifest;
  Fields fields(value, "", document);
  require_digest(text, document);
  manifest.target = fields.text("target");
  const std::optional<std::string> kernels = fields.optional_text("kernels");
  if (kernels && *kernels != "skipdec")
    fields.refuse("kernels", "is " + shown(fields.value("kernels")) + "; allowed: skipdec");
  manifest.uses_skipdec_kernels = kernels.has_value();
  manifest.model = model_of(fields.value("model"), document);
  read_precision(fields, manifest, document);
  read_engines(fields.array("engines", kMostEngines), manifest, document);
  if (fields.find("candidates") != nullptr)
    manifest.candidates =
        named_engine_of(fields, "candidates", "candidates", EngineKind::kCandidates, document);
  manifest.draft = fields.optional_text("draft");
  if (const json* draft = fields.find("trained_draft"))
    read_trained_draft(*draft, manifest, document);
  if (const json* draft = fields.find("draft_head")) read_draft_head(*draft, manifest, document);
  if (const json* build = fields.find("build")) read_build(*build, manifest, document);
  read_files(fields.array("files", kMostFiles), manifest, document);
  read_texts(fields, manifest, document);

  std::set<std::string_view> known;
  for (const FileRecord& record : manifest.files)
    if (!known.insert(record.path).second)
      fields.refuse("files", "lists " + record.path + " twice");
  if (const json* canonical = fields.find_given("canonical"))
    for (const json& entry : array_of(*canonical, "canonical", kMostEngines + 1, document))
      manifest.canonical.push_back(engine_of(entry, "canonical", document).spec);
  require_listed(manifest, known, document);
  for (const auto& [name, path] :
       {std::pair{"tokenizer", manifest.tokenizer},
        std::pair{"chat_template", manifest.chat_template}, std::pair{"ngrams", manifest.ngrams}})
    if (path && known.count(*path) == 0)
      fields.refuse(name, "names " + *path + ", not listed in files");
  if (manifest.chat_template && !manifest.tokenizer)
    fields.refuse("chat_template", "is present, but tokenizer is null");
  require_canonical(text, value, document);
  check_contract(manifest, subject);
  return manifest;
}

}  // namespace skipdec::runtime
