// Weights, indices, configurations, manifests.
#include <cstring>
#include <nlohmann/json.hpp>

#include "apps/cli/config_file.h"
#include "data/checkpoint/checkpoint.h"
#include "data/checkpoint/weights.h"
#include "data/codec/checksums.h"
#include "data/dump/dump.h"
#include "data/gguf/gguf_model.h"
#include "data/io/json.h"
#include "data/safetensors/safetensors.h"
#include "data/tokenizer/vocabulary.h"
#include "data/torch/state_dict.h"
#include "data/torch/torch_file.h"
#include "nn/models/model_config.h"
#include "tests/fuzz/readers.h"
#include "tests/fuzz/targets.h"

namespace brine::fuzz {

namespace {

// Every tensor, unless it is of a type or a number of axes that Brine does not have.
void read_tensors(const data::WeightFile& file) {
  for (const data::WeightInfo& entry : file.entries()) {
    try {
      const Tensor copy = file.tensor(entry.name);
      const uint64_t bytes = uint64_t(copy.numel()) * item_size(copy.dtype());
      if (file.in_order(entry) && bytes != entry.size)
        throw Find("a tensor of another size than its entry");
    } catch (const Error&) {
    }
  }
}

}  // namespace

void read_safetensors(Dir dir, std::string_view bytes) {
  write_input(dir / "model.safetensors", bytes);
  data::Safetensors file(dir / "model.safetensors");
  read_tensors(file);
}

void read_gguf(Dir dir, std::string_view bytes) {
  const data::Path path = dir / "model.gguf";
  write_input(path, bytes);
  if (!data::is_gguf(path)) throw Error(path.string() + ": not GGUF");
  const data::GgufModel model(path);
  read_tensors(model);
  for (const auto& [key, value] : model.header().metadata.values())
    model.header().metadata.text(value);
  model.config();
  if (model.header().metadata.has("tokenizer.ggml.model"))
    data::gguf_vocabulary(model.header().metadata);
}

void read_torch(Dir dir, std::string_view bytes) {
  write_input(dir / "pytorch_model.bin", bytes);
  const data::TorchFile file(dir / "pytorch_model.bin");
  read_tensors(file);
}

// Without the archive, whose lengths keep a pickle from growing.
void read_pickle(Dir dir, std::string_view bytes) {
  const data::StateDict dict = data::read_state_dict((dir / "data.pkl").string(), bytes);
  for (const data::PickledTensor& t : dict.tensors) {
    if (t.storage >= dict.storages.size() || t.shape.size() != t.strides.size())
      throw Find("a tensor without a storage or strides");
  }
}

void read_index(Dir dir, std::string_view bytes) {
  for (const char* name : {"a", "b"}) {
    data::save_safetensors(dir / (std::string("model-") + name + ".safetensors"),
                           {{std::string(name) + ".weight", Tensor::zeros({2})},
                            {std::string(name) + ".bias", Tensor::zeros({1})}});
  }
  write_input(dir / "model.safetensors.index.json", bytes);
  data::WeightFiles files(dir);
  if (files.entries().size() > 4) throw Find("more tensors than the shards contain");
}

void read_config(Dir dir, std::string_view bytes) {
  std::string path = (dir / "config.json").string();
  write_input(path, bytes);
  data::Json json = parse_json_or_discard(data::read_file(path), path);
  nn::ModelConfig config = nn::from_hf_config(json, path);
  // What was read is written, and reads as the same.
  std::string once = nn::to_hf_config(config).dump();
  nn::ModelConfig again = nn::from_hf_config(data::Json::parse(once), path);
  if (nn::to_hf_config(again).dump() != once) throw Find("config.json changes when written");
}

void read_toml(Dir dir, std::string_view bytes) {
  write_input(dir / "config.toml", bytes);
  nn::ModelConfig config;
  data::Schema schema;
  config.describe(schema);
  apply_config_file(schema, (dir / "config.toml").string());
}

void read_dump(Dir dir, std::string_view bytes) {
  write_input(dir / "manifest.json", bytes);
  data::DumpManifest m = data::read_manifest(dir);
  data::write_manifest(dir, m);
  data::DumpManifest again = data::read_manifest(dir);
  bool same = data::spec_differences(m.spec, again.spec).empty() &&
              m.shards.size() == again.shards.size() && m.spec.windows == again.spec.windows;
  if (!same) throw Find("a manifest changes when written");
}

void read_checkpoint(Dir dir, std::string_view bytes) {
  // The checksum of itself, without which nothing else would be looked at.
  data::Sha256 sum;
  sum.update(bytes.data(), bytes.size());
  std::string text(bytes);
  text += ",\n  \"sha256\": \"" + sum.hex() + "\"\n}\n";
  write_input(dir / "manifest.json", text);
  data::read_checkpoint_manifest(dir);
}

}  // namespace brine::fuzz
