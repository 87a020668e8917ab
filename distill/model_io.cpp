// Loading, copying and exporting models.
#include "distill/model_io.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/file_io.h"
#include "data/sha256.h"
#include "distill/checkpoint.h"
#include "nn/parameter_store.h"

namespace brine::distill {
namespace fs = std::filesystem;

namespace {

nn::Json read_json(const std::string& file) {
  std::string text = data::read_file(file, 16 << 20);
  try {
    return nn::Json::parse(text);
  } catch (const std::exception& e) {
    throw Error(file + ": not JSON: " + e.what());
  }
}

// Hugging Face files may lack the prefix "model." and may repeat the tied head.
std::vector<nn::NamedTensor> read_tensors(const std::string& file) {
  data::Safetensors in{data::Path(file)};
  std::vector<nn::NamedTensor> out;
  bool tied = false;
  for (const data::SafetensorsEntry& e : in.entries()) {
    if (e.name == "lm_head.weight") {
      tied = true;
      continue;
    }
    std::string name = e.name.rfind("decoder.", 0) == 0 ? "model." + e.name : e.name;
    out.push_back({name, in.tensor(e.name)});
  }
  if (!tied) return out;
  Tensor head = in.tensor("lm_head.weight");
  for (const nn::NamedTensor& t : out) {
    if (t.name != "model.decoder.embed_tokens.weight") continue;
    check(head.shape() == t.tensor.shape() && head.to_vector() == t.tensor.to_vector(), file,
          ": lm_head.weight differs from embed_tokens.weight; untied heads are not supported");
  }
  return out;
}

}  // namespace

std::string resolve_model(const std::string& path, std::vector<std::string>* notes) {
  check(fs::exists(path), path, ": no such model directory");
  check(fs::is_directory(path), path, ": not a directory");
  if (fs::exists(fs::path(path) / "manifest.json")) {  // a checkpoint by its name
    std::optional<std::string> defect = checkpoint_defect(path);
    check(!defect, path, ": ", defect.value_or(""));
  }
  if (fs::exists(fs::path(path) / "config.json")) return path;
  LatestCheckpoint latest = latest_good_checkpoint(path);
  if (notes) *notes = latest.skipped;
  std::string why = latest.skipped.empty() ? "" : "; skipped " + latest.skipped.front();
  check(latest.good.has_value(), path, ": has neither a config.json nor a good checkpoint", why);
  return latest.good->path.string();
}

std::vector<data::NamedTensor> tensors_of(nn::Model& model) {
  std::vector<data::NamedTensor> out;
  for (nn::NamedTensor& t : nn::state_of(model)) out.emplace_back(t.name, t.tensor.contiguous());
  return out;
}

std::string tensor_hash(const std::vector<data::NamedTensor>& tensors) {
  std::vector<const data::NamedTensor*> sorted;
  for (auto& t : tensors) sorted.push_back(&t);
  std::sort(sorted.begin(), sorted.end(), [](auto* a, auto* b) { return a->first < b->first; });
  data::Sha256 hash;
  for (auto* t : sorted) {
    Tensor x = t->second.contiguous();
    hash.update(join(t->first, " ", x.dtype(), " ", x.shape(), "\n"));
    hash.update({reinterpret_cast<const char*>(x.raw()), size_t(x.numel()) * item_size(x.dtype())});
  }
  return hash.hex();
}

LoadedModel load_model(const std::string& path) {
  LoadedModel m;
  m.directory = resolve_model(path, &m.notes);
  std::string config = (fs::path(m.directory) / "config.json").string();
  std::string weights = (fs::path(m.directory) / "model.safetensors").string();
  m.config = nn::from_hf_config(read_json(config), config);
  check(fs::exists(weights), m.directory, ": has no model.safetensors");
  m.model = nn::make_model(m.config, 0);
  nn::load_state(*m.model, read_tensors(weights), weights);
  m.store = std::make_unique<nn::ParameterStore>(*m.model);
  m.hash = tensor_hash(tensors_of(*m.model));
  return m;
}

std::unique_ptr<nn::Model> make_student(const nn::ModelConfig& config, nn::Model& teacher,
                                        uint64_t seed) {
  std::unique_ptr<nn::Model> student = nn::make_model(config, seed);
  std::vector<nn::NamedTensor> base;
  bool same = teacher.attention_name() == student->attention_name();
  for (nn::NamedTensor& t : nn::state_of(teacher)) {
    if (same || !teacher.is_attention_tensor(t.name)) base.push_back(t);
  }
  nn::load_state(*student, base, "teacher",
                 [&](const std::string& name) { return student->is_attention_tensor(name); });
  return student;
}

std::string config_text(nn::ModelConfig& config, const data::Tokenizer* tokenizer) {
  data::SpecialIds ids = tokenizer ? tokenizer->special() : data::SpecialIds{};
  nn::HfTokenIds used{ids.bos.value_or(2), ids.eos.value_or(2), ids.pad.value_or(1)};
  return nn::to_hf_config(config, used).dump(2) + "\n";
}

std::unique_ptr<data::Tokenizer> tokenizer_of(const std::string& model_directory) {
  fs::path dir(model_directory);
  for (const fs::path& at : {dir, dir.parent_path()}) {
    if (fs::exists(at / "tokenizer.json") || fs::exists(at / "vocab.json")) {
      return data::load_tokenizer(at.string());
    }
  }
  throw Error(model_directory + ": no tokenizer.json beside the model");
}

void export_model(nn::ModelConfig& config, nn::Model& model, const data::Tokenizer* tokenizer,
                  const std::string& out) {
  fs::path dir(out);
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.json"}) {
    check(!fs::exists(dir / name), out, ": already holds a ", name, "; give another directory");
  }
  std::error_code error;
  fs::create_directories(dir, error);
  check(!error, out, ": cannot be made: ", error.message());
  data::save_safetensors(dir / "model.safetensors", tensors_of(model));
  if (tokenizer) tokenizer->save(out);
  data::write_file_atomic(dir / "config.json", config_text(config, tokenizer));
}

}  // namespace brine::distill
