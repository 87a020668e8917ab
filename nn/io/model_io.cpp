// Finding and copying models, their names and hashes.
#include "nn/io/model_io.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/checkpoint/checkpoint.h"
#include "data/codec/checksums.h"
#include "data/gguf/gguf_file.h"
#include "data/io/file_io.h"
#include "data/io/json.h"
#include "data/tokenizer/vocabulary.h"
#include "data/weights/hub_cache.h"
#include "nn/layers/low_rank.h"

namespace brine::nn {

namespace fs = std::filesystem;
namespace {

void add_tensor(data::Sha256& hash, const std::string& name, const Tensor& x) {
  hash.update(join(name, " ", x.dtype(), " ", x.shape(), "\n"));
  hash.update(x.raw(), size_t(x.numel()) * item_size(x.dtype()));
}

}  // namespace

bool is_model_path(const std::string& name) {
  const std::string path = data::local_model(name);
  return fs::is_directory(path) || data::is_gguf(path);
}

std::string resolve_model(const std::string& name, std::vector<std::string>* notes) {
  const std::string path = data::local_model(name);
  check_found(fs::exists(path), path, ": no such model directory", data::how_to_fetch(path));
  data::refuse_lfs_pointer(path);
  check_found(is_model_path(path), path, ": not a directory and not a GGUF file");
  if (!fs::is_directory(path)) return path;
  if (const fs::path adapter = fs::path(path) / "adapter_config.json"; fs::exists(adapter)) {
    const data::Json json = parse_json_or_discard(data::read_file(adapter), adapter.string());
    const bool named = json.is_object() && json.contains("base_model_name_or_path") &&
                       json["base_model_name_or_path"].is_string();
    throw Error(join(path, ": is a PEFT adapter",
                     named ? " of " + json_text(json["base_model_name_or_path"]) : "",
                     ", not a model; merge it into its base (merge_and_unload() in PEFT) and save "
                     "the result"),
                ErrorKind::format);
  }
  if (fs::exists(fs::path(path) / "manifest.json")) {  // a checkpoint by its name
    check_format(!fs::exists(fs::path(path) / "shard-00000.h5"), path, ": is a dump, not a model");
    std::optional<std::string> defect = data::checkpoint_defect(path);
    check_format(!defect, path, ": ", defect.value_or(""));
  }
  if (fs::exists(fs::path(path) / "config.json")) return path;
  data::LatestCheckpoint latest = data::latest_good_checkpoint(path);
  if (notes) *notes = latest.skipped;
  check_found(latest.good.has_value(), path, ": has neither a config.json nor an intact checkpoint",
              latest.why());
  return latest.good->path.string();
}

std::vector<NamedTensor> tensors_of(Model& model) {
  std::vector<NamedTensor> out;
  for (NamedTensor& t : state_of(model))
    out.push_back({t.name, t.tensor.to(Device{}).contiguous()});
  return out;
}

std::string tensor_hash(const std::vector<NamedTensor>& tensors) {
  std::vector<const NamedTensor*> sorted;
  sorted.reserve(tensors.size());
  for (auto& t : tensors) sorted.push_back(&t);
  std::sort(sorted.begin(), sorted.end(), [](auto* a, auto* b) { return a->name < b->name; });
  data::Sha256 hash;
  for (auto* t : sorted) add_tensor(hash, t->name, t->tensor.contiguous());
  return hash.hex();
}

std::string tensor_hash(const data::Safetensors& file) {
  data::Sha256 hash;
  for (const auto& e : file.entries()) add_tensor(hash, e.name, file.tensor(e.name));
  return hash.hex();
}

std::unique_ptr<Model> make_student(const ModelConfig& config, Model& teacher, uint64_t seed) {
  Init init{.random = {.seed = seed, .stream = 1}};
  init.base_values = false;
  std::unique_ptr<Model> student = make_model(config, init);
  std::vector<NamedTensor> base;
  bool same = teacher.attention_name() == student->attention_name();
  for (NamedTensor& t : state_of(teacher)) {
    if (same || !teacher.is_attention_tensor(t.name)) base.push_back(t);
  }
  load_state(*student, base, "teacher",
             [&](const std::string& name) { return student->is_attention_tensor(name); });
  return student;
}

std::string config_text(ModelConfig& config, const data::Tokenizer* tokenizer) {
  return json_text(to_hf_config(config, extras_of(tokenizer)), 2) + "\n";
}

HfExtras extras_of(const data::Tokenizer* tokenizer) {
  if (!tokenizer) return {};
  data::SpecialIds ids = tokenizer->special();
  return {.bos = ids.bos, .eos = ids.eos, .pad = ids.pad};
}

std::string tokenizer_location(const std::string& model_directory) {
  if (data::is_gguf(model_directory))
    return data::has_gguf_vocabulary(model_directory) ? model_directory : "";
  fs::path dir(model_directory);
  for (const fs::path& at : {dir, dir.parent_path()}) {
    for (const char* name : {"tokenizer.json", "vocab.json", "vocab.txt"}) {
      if (fs::exists(at / name)) return at.string();
    }
  }
  return "";
}

std::unique_ptr<data::Tokenizer> tokenizer_of(const std::string& model_directory) {
  std::string at = tokenizer_location(model_directory);
  check_found(!at.empty(), model_directory, ": no tokenizer.json next to the model");
  return data::load_tokenizer(at);
}

bool is_tokenizer_of(const data::Tokenizer& tokenizer, const std::string& model_directory) {
  const std::string at = tokenizer_location(model_directory);
  return !at.empty() && data::load_tokenizer(at)->hash() == tokenizer.hash();
}

std::string tokenizer_warning(const ModelConfig& config, const data::Tokenizer& tokenizer) {
  // transformers 5 ignores the tokenizer_class of this family's files, since many name a wrong one.
  if (config.model_type != "qwen2" || tokenizer.transformers_class() == "Qwen2Tokenizer") return "";
  return "AutoTokenizer of transformers 5 replaces every tokenizer of a qwen2 model by Qwen2's, "
         "which tokenizes text differently; load it by "
         "PreTrainedTokenizerFast.from_pretrained(DIR)";
}

LoadedModel merged_low_rank(const LoadedModel& model) {
  check(model.config.lora_rank > 0, "export: ", model.directory,
        " has no low-rank additions (lora_rank) to merge");
  LoadedModel out;
  out.config = model.config;
  out.config.lora_rank = 0;
  out.directory = model.directory;
  out.model = make_model(out.config, Init{.random = {}, .device = Device::meta});
  out.store = std::make_unique<ParameterStore>(*out.model, ParameterStore::Gradients::later);
  load_state(*out.model, merge_low_rank(state_of(*model.model)), model.directory);
  return out;
}

}  // namespace brine::nn
