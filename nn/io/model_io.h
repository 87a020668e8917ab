// Models on disk: a Hugging Face style directory, a checkpoint, a run (its newest checkpoint), or a
// GGUF file.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "data/safetensors/safetensors.h"
#include "data/tokenizer/tokenizer.h"
#include "nn/models/model_config.h"
#include "nn/optim/parameter_store.h"

namespace brine::nn {

// The file next to config.json with what transformers' generate() takes by default.
inline constexpr const char* kGenerationConfig = "generation_config.json";

struct LoadedModel {
  ModelConfig config;
  std::shared_ptr<Model> model;
  std::unique_ptr<ParameterStore> store;
  std::string directory;             // the one that was read: a run resolves to a checkpoint; or
                                     // the GGUF file
  std::vector<std::string> notes;    // newer checkpoints of the run that are damaged, and why
  std::vector<std::string> remarks;  // on how its files were read, in one line each

  double seconds = 0;                 // the time of loading
  mutable bool uncalibrated = false;  // its attention is new: see calibrate_attention()

  // SHA-256 of names, types, shapes and values of all tensors; computed at the first call.
  const std::string& hash() const;

 private:
  mutable std::string hash_;
};

struct LoadOptions {
  bool gradients = false;  // allocate gradients at once; otherwise store->add_gradients()
  // Weights that are f32 in their file stay there, mapped, until there are gradients: loading then
  // takes no time, and their memory is the system's page cache. The file must not be written in
  // place meanwhile (renaming a file over it is harmless). A pass that is limited by bandwidth is
  // about an eighth slower than on copies, which are in huge pages. Not on a device.
  bool map = false;
};

// For inference: rounds the matrices and tables outside the attention method, those of linear maps
// and embeddings, to bf16 or f16, which halves their memory; matrices stored [in, out] (GPT-2's)
// stay. Values that 16 bits represent exactly, as those of most checkpoints published in bf16, stay
// the same. With f32 nothing changes. hash() is that of the rounded weights. Throws when there are
// gradients.
void hold_weights_in(Dtype dtype, LoadedModel& model);
inline constexpr data::Named<Dtype> kWeightTypes[] = {
    {Dtype::f32, "f32"}, {Dtype::bf16, "bf16"}, {Dtype::f16, "f16"}};
inline constexpr const char* kWeightsHelp = "Type of the model's weights in memory";

// Whether a path can be a model: a directory, a GGUF file, or a name in the Hub's cache
// (data/weights/hub_cache.h), which all functions below take for a path, too.
bool is_model_path(const std::string& path);

// A run directory resolves to its newest intact checkpoint (`notes` receives the skipped ones), any
// other directory with a config.json and a GGUF file to itself.
std::string resolve_model(const std::string& path, std::vector<std::string>* notes = nullptr);

// The content of config.json: of a model's directory, of a run's newest intact checkpoint, or of
// the file itself; that which the metadata of a GGUF file say. No weights are read.
ModelConfig load_config(const std::string& path);

// Reads a Hugging Face directory (safetensors or pytorch_model.bin, one file or shards; f32, f16 or
// bf16), a GGUF file, a checkpoint, or an adapter (see ExportOptions) with its base. Needs little
// more memory than the f32 weights. Throws an Error that lists missing and unknown tensors and
// names unsupported settings.
LoadedModel load_model(const std::string& path, const LoadOptions& options = {});

// The student: a model with the attention of `config`, every base tensor copied from the teacher;
// the tensors of the attention method keep their initial values.
std::unique_ptr<Model> make_student(const ModelConfig& config, Model& teacher, uint64_t seed);

// The same model without low-rank additions: W + B A in the place of W. Throws when it has none.
LoadedModel merged_low_rank(const LoadedModel& model);

// state_of() in CPU memory, contiguous.
std::vector<NamedTensor> tensors_of(Model& model);
// config.json of a model; special ids from the tokenizer if there is one.
std::string config_text(ModelConfig& config, const data::Tokenizer* tokenizer);
HfExtras extras_of(const data::Tokenizer* tokenizer);
// SHA-256 of names, types, shapes and values of tensors, in the order of their names.
std::string tensor_hash(const std::vector<NamedTensor>& tensors);
// The same for all tensors in a file, one after another.
std::string tensor_hash(const data::Safetensors& file);
// The location of a model's tokenizer: its directory, the run above a checkpoint, or the GGUF file;
// "" if there is none.
std::string tokenizer_location(const std::string& model_directory);
// That tokenizer; throws when there is none.
std::unique_ptr<data::Tokenizer> tokenizer_of(const std::string& model_directory);
// Whether a tokenizer gives the same ids as the one next to a model; false when there is none.
bool is_tokenizer_of(const data::Tokenizer& tokenizer, const std::string& model_directory);
// What a user of transformers must know about the files of an exported model's tokenizer; empty:
// nothing.
std::string tokenizer_warning(const ModelConfig& config, const data::Tokenizer& tokenizer);

struct ExportOptions {
  Dtype dtype = Dtype::f32;  // f32, f16 or bf16
  uint64_t shard_bytes = 0;  // 0: one file
  // Not empty: an adapter, only the attention method's tensors and the base's path. Loading
  // searches a relative path next to the adapter, then in the working directory.
  std::string base_model = {};
  // Written next to the weights, by name, and what changes config.json before it is written; null:
  // nothing.
  std::map<std::string, std::string> files = {};
  std::function<void(data::Json&)> edit_config = {};
};

// Writes config.json, the weights and the tokenizer's files (null: none). `out` must not contain a
// model. Refuses values that f16 cannot represent, and an adapter whose other tensors are not the
// base's.
void export_model(ModelConfig& config, Model& model, const data::Tokenizer* tokenizer,
                  const std::string& out, const ExportOptions& options = {});

}  // namespace brine::nn
