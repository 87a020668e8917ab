// Models on disk: a Hugging Face style directory, a checkpoint, or a run (its newest checkpoint).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/safetensors/safetensors.h"
#include "data/tokenizer/tokenizer.h"
#include "nn/models/model_config.h"
#include "nn/optim/parameter_store.h"

namespace brine::nn {

struct LoadedModel {
  nn::ModelConfig config;
  std::shared_ptr<nn::Model> model;
  std::unique_ptr<nn::ParameterStore> store;
  std::string directory;           // the one that was read: a run resolves to a checkpoint
  std::vector<std::string> notes;  // newer checkpoints of the run that are damaged, and why

  double seconds = 0;  // that loading took

  // Of names, types, shapes and values of all tensors, SHA-256; computed when first asked for.
  const std::string& hash() const;

 private:
  mutable std::string hash_;
};

struct LoadOptions {
  bool gradients = false;  // make room for gradients at once; otherwise store->add_gradients()
  // Weights that are f32 in their file stay there, mapped, until there are gradients: loading takes
  // no time and their memory is the system's cache of the file, which must not be written in place
  // meanwhile (a file that is renamed over it does no harm). A pass that is short of bandwidth runs
  // about an eighth slower than on copies, which are on huge pages. Not on a device.
  bool map = false;
};

// A run directory resolves to its newest good checkpoint (what was skipped is put into `notes`),
// any other directory with a config.json to itself.
std::string resolve_model(const std::string& path, std::vector<std::string>* notes = nullptr);

// What config.json says: of a model's directory, of a run's newest good checkpoint, or of the file
// itself. No weights are read.
nn::ModelConfig load_config(const std::string& path);

// Reads a Hugging Face directory (one file or shards; f32, f16 or bf16), a checkpoint, or an
// adapter (see ExportOptions) with its base. Needs little more memory than the f32 weights. Throws
// Error that lists missing and unknown tensors and names what is not supported.
LoadedModel load_model(const std::string& path, const LoadOptions& options = {});

// The student: a model with the attention of `config`, every base tensor copied from the teacher;
// the attention method's own tensors keep their initial values.
std::unique_ptr<nn::Model> make_student(const nn::ModelConfig& config, nn::Model& teacher,
                                        uint64_t seed);

// Tensors under their names, for safetensors.
std::vector<data::NamedTensor> tensors_of(nn::Model& model);
// config.json of a model; special ids from the tokenizer where there is one.
std::string config_text(nn::ModelConfig& config, const data::Tokenizer* tokenizer);
nn::HfExtras extras_of(const data::Tokenizer* tokenizer);
// SHA-256 of names, types, shapes and values of tensors, in the order of their names.
std::string tensor_hash(const std::vector<data::NamedTensor>& tensors);
// The same of all tensors in a file, one after another.
std::string tensor_hash(const data::Safetensors& file);
// Where the tokenizer of a model is: its directory, or the run above a checkpoint; "" for nowhere.
std::string tokenizer_place(const std::string& model_directory);
// That tokenizer; throws when there is none.
std::unique_ptr<data::Tokenizer> tokenizer_of(const std::string& model_directory);

struct ExportOptions {
  Dtype dtype = Dtype::f32;  // f32, f16 or bf16
  uint64_t shard_bytes = 0;  // 0: one file
  // Not empty: an adapter, only the attention method's tensors and the base's path. Loading looks
  // for a relative path beside the adapter, then in the working directory.
  std::string base_model = {};
};

// Writes config.json, the weights and the tokenizer's files (null: none). `out` must not hold a
// model. Refuses values that f16 cannot hold, and an adapter whose other tensors are not the
// base's.
void export_model(nn::ModelConfig& config, nn::Model& model, const data::Tokenizer* tokenizer,
                  const std::string& out, const ExportOptions& options = {});

}  // namespace brine::nn
