// Weights, indices, configurations, manifests.
#include <cstring>
#include <nlohmann/json.hpp>

#include "apps/cli/config_file.h"
#include "data/checkpoint/checkpoint.h"
#include "data/dump/dump.h"
#include "data/io/json.h"
#include "data/io/sha256.h"
#include "data/safetensors/weights.h"
#include "nn/models/model_config.h"
#include "tests/fuzz/readers.h"
#include "tests/fuzz/targets.h"

namespace brine::fuzz {

void read_safetensors(Dir dir, std::string_view bytes) {
  write_input(dir / "model.safetensors", bytes);
  data::Safetensors file(dir / "model.safetensors");
  for (const data::SafetensorsEntry& entry : file.entries()) {
    try {
      Tensor copy = file.tensor(entry.name);
      if (uint64_t(copy.numel()) * item_size(copy.dtype()) != entry.size)
        throw Find("a tensor of another size than its entry");
    } catch (const Error&) {  // a type or a number of axes that we have not
    }
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
