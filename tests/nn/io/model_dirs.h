// Model directories for the tests of loading and export: copies of golden ones with their tensors
// renamed, converted, cut into shards or damaged.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/checkpoint/weights.h"
#include "nn/io/model_io.h"
#include "tests/gradcheck.h"
#include "tests/messages.h"
#include "tests/paths.h"
#include "tests/scratch.h"

namespace brine::test {

using namespace brine::nn;

inline std::string golden_dir(const std::string& name) {
  return brine::test::source_dir() + "/tests/golden/models/" + name;
}

using Tensors = std::map<std::string, Tensor>;

inline Tensors tensors_in(const std::string& directory) {
  Tensors out;
  data::WeightFiles files{data::Path(directory)};
  for (const auto& e : files.entries()) out[e.entry->name] = e.file->tensor(e.entry->name);
  return out;
}

inline data::Json json_in(const std::string& file) {
  return data::Json::parse(data::read_file(file));
}

// What a test changes of a copy.
struct Changes {
  std::function<void(Tensors&)> tensors = {};
  std::function<void(data::Json&)> config = {};
  uint64_t shard_bytes = 0;
};

// A copy of a golden directory with changes, under the scratch directory.
inline std::string copy_of(const Scratch& scratch, const std::string& golden,
                           const Changes& changes) {
  static int number = 0;
  std::string out = (scratch / ("copy" + std::to_string(++number))).string();
  std::filesystem::create_directories(out);
  Tensors tensors = tensors_in(golden_dir(golden));
  data::Json config = json_in(golden_dir(golden) + "/config.json");
  if (changes.tensors) changes.tensors(tensors);
  if (changes.config) changes.config(config);
  std::vector<NamedTensor> weights;
  for (const auto& [name, tensor] : tensors) weights.push_back({name, tensor});
  data::save_weights(out, weights, changes.shard_bytes);
  data::write_file_atomic(out + "/config.json", config.dump());
  return out;
}

// The message of the error that loading gives, without the directory's path.
inline std::string refusal(const std::string& directory, const LoadOptions& options = {}) {
  std::string text = message([&] { load_model(directory, options); });
  while (text.find(directory + "/") != text.npos) {
    text.erase(text.find(directory + "/"), directory.size() + 1);
  }
  return text;
}

// A SEA student of a model, its base unchanged, its other tensors as they are drawn.
struct SeaStudent {
  nn::ModelConfig config;
  std::unique_ptr<nn::Model> model;
  std::string base;

  // Of a golden model, or of a file.
  explicit SeaStudent(const std::string& of) : base(is_model_path(of) ? of : golden_dir(of)) {
    LoadedModel teacher = load_model(base);
    config.copy_sizes(teacher.config);
    config.attention = "sea";
    data::Schema keys;
    config.method().describe(keys);
    keys.set_text("k", {"3"});
    keys.set_text("columns", {"12"});
    model = make_student(config, *teacher.model, 5);
  }
  std::string hash() const { return tensor_hash(tensors_of(*model)); }
  std::string write(const Scratch& scratch, const std::string& name, const ExportOptions& options) {
    std::string out = (scratch / name).string();
    export_model(config, *model, nullptr, out, options);
    return out;
  }
  std::string refusal_of(const Scratch& scratch, const std::string& base_model) {
    const std::string said =
        message([&] { write(scratch, "refused", {.base_model = base_model}); });
    CHECK_FALSE(std::filesystem::exists(scratch / "refused"));
    return said;
  }
};

}  // namespace brine::test
