// Models on disk: a Hugging Face style directory, a checkpoint, or a run (its newest checkpoint).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/safetensors.h"
#include "data/tokenizer.h"
#include "nn/model_config.h"
#include "nn/parameter_store.h"

namespace brine::distill {

struct LoadedModel {
  nn::ModelConfig config;
  std::shared_ptr<nn::Model> model;
  std::unique_ptr<nn::ParameterStore> store;
  std::string directory;           // the one that was read: a run resolves to a checkpoint
  std::vector<std::string> notes;  // newer checkpoints of the run that are damaged, and why
  std::string hash;                // of names, types, shapes and values of all tensors, SHA-256
};

// A run directory resolves to its newest good checkpoint (what was skipped is put into `notes`),
// any other directory with a config.json to itself.
std::string resolve_model(const std::string& path, std::vector<std::string>* notes = nullptr);

LoadedModel load_model(const std::string& path);

// The student: a model with the attention of `config`, every base tensor copied from the teacher;
// the attention method's own tensors keep their initial values.
std::unique_ptr<nn::Model> make_student(const nn::ModelConfig& config, nn::Model& teacher,
                                        uint64_t seed);

// Tensors under their names, for safetensors.
std::vector<data::NamedTensor> tensors_of(nn::Model& model);
// config.json of a model; special ids from the tokenizer where there is one.
std::string config_text(nn::ModelConfig& config, const data::Tokenizer* tokenizer);
std::string tensor_hash(const std::vector<data::NamedTensor>& tensors);
// The tokenizer beside a model: in its directory, or in the run above a checkpoint.
std::unique_ptr<data::Tokenizer> tokenizer_of(const std::string& model_directory);

// Writes config.json, model.safetensors and the tokenizer's files. `out` must not hold a model.
void export_model(nn::ModelConfig& config, nn::Model& model, const data::Tokenizer* tokenizer,
                  const std::string& out);

}  // namespace brine::distill
