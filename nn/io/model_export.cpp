// Exporting a model to a directory: the whole model, or an adapter.
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "data/checkpoint/checkpoint.h"
#include "data/checkpoint/weights.h"
#include "data/io/file_io.h"
#include "data/io/json.h"
#include "nn/io/model_io.h"

namespace brine::nn {
namespace fs = std::filesystem;
namespace {

// `t` as `dtype`; a finite value that becomes infinite is an error.
Tensor stored(const std::string& name, const Tensor& t, Dtype dtype) {
  Tensor out = t.to(dtype);
  if (dtype != Dtype::f16) return out;
  const float* x = t.data<float>();
  const f16* y = out.data<f16>();
  for (int64_t i = 0; i < t.numel(); ++i) {
    check(std::isfinite(float(y[i])) || !std::isfinite(x[i]), "export: tensor ", name, " contains ",
          x[i], ", too large for f16; use bf16 or f32");
  }
  return out;
}

// Refuses a base whose tensors are not bit for bit those of the model; returns its hash.
std::string check_base(Model& model, const std::string& path) {
  check(!is_full_attention(model.attention_name()), "export: ", model.attention_name(),
        " attention has no tensors of its own, so there is no adapter");
  LoadedModel base = load_model(path, {.map = true});
  check(is_full_attention(base.config.attention), "export: the base ", path, " has attention '",
        base.config.attention, "', not 'flash' or 'dense'");
  std::unordered_map<std::string, Tensor> theirs;
  for (NamedTensor& t : tensors_of(*base.model)) theirs[t.name] = t.tensor;
  int64_t compared = 0, changed = 0;
  std::string first;
  for (const NamedTensor& t : tensors_of(model)) {
    if (model.is_attention_tensor(t.name)) continue;
    ++compared;
    auto it = theirs.find(t.name);
    if (it != theirs.end() && bits_equal(it->second, t.tensor)) continue;
    if (changed++ == 0) first = t.name;
  }
  check(changed == 0 && compared == int64_t(theirs.size()), "export: ", changed, " of ", compared,
        " tensors differ from the base ", path, " (first: ", first,
        "), so an adapter would lose them; export the whole model");
  return base.hash();
}

}  // namespace

void export_model(ModelConfig& config, Model& model, const data::Tokenizer* tokenizer,
                  const std::string& out, const ExportOptions& options) {
  check(options.dtype == Dtype::f32 || options.dtype == Dtype::f16 || options.dtype == Dtype::bf16,
        "export: no model is stored as ", options.dtype);
  fs::path dir(out);
  data::refuse_occupied(dir);
  HfExtras extras = extras_of(tokenizer);
  extras.dtype = options.dtype;
  data::Json json = to_hf_config(config, extras);
  bool adapter = !options.base_model.empty();
  if (adapter) {
    json["brine"]["base_hash"] = check_base(model, options.base_model);
    json["base_model"] = options.base_model;
  }
  if (options.edit_config) options.edit_config(json);
  std::vector<NamedTensor> tensors;
  for (NamedTensor& t : tensors_of(model)) {
    if (adapter && !model.is_attention_tensor(t.name)) continue;
    tensors.push_back({t.name, stored(t.name, t.tensor, options.dtype)});
  }
  std::error_code error;
  fs::create_directories(dir, error);
  check(!error, out, ": cannot be created: ", error.message());
  data::save_weights(dir, tensors, options.shard_bytes);
  if (tokenizer) tokenizer->save(out);
  const std::string& generation = config.token_settings.generation_config;
  if (!generation.empty()) data::write_file_atomic(dir / kGenerationConfig, generation);
  for (const auto& [name, text] : options.files) data::write_file_atomic(dir / name, text);
  data::write_file_atomic(dir / "config.json", json_text(json, 2) + "\n");
}

}  // namespace brine::nn
