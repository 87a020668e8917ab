// brine train: a model from scratch, or one trained on, by next-token prediction.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/cli/config_file.h"
#include "apps/shared/training.h"
#include "data/io/file_io.h"
#include "nn/io/model_io.h"

namespace brine {
namespace {

struct Train {
  std::string model, tokenizer;
  std::vector<std::string> train;
  TrainingKeys keys;
  TrainingRun parts;

  Train() {
    keys.trainer.optimizer.learning_rate = 1e-3;
    keys.trainer.optimizer.attention_learning_rate = 1e-3;
  }

  void describe(data::Schema& s) {
    s.field("tokenizer", tokenizer, "Tokenizer directory; none: the one beside the model");
    s.field("train", train, "Text files or token shards to train on", {.required = true});
    keys.describe(s);
    s.field("model.from", model,
            "Model directory to train on from, or a config.json with the sizes; none: [model]",
            {.alias = "model"});
    parts.config.describe(s);
    s.renamed("decoder", "model");
  }

  int run(const RunContext& context);
};

// A family that was asked for must be that of the model.
void check_family(const Train& t, const nn::ModelConfig& theirs, const RunContext& context) {
  const data::Schema::Field* type = context.keys.find("model.type");
  check(!type->given || t.parts.config.model_type == theirs.model_type,
        "model.type cannot be set, ", t.model, " has its own");
}

// The weights of a directory under the attention method that was asked for, or new ones.
void make_or_load(Train& t, const RunContext& context) {
  TrainingRun& run = t.parts;
  if (!t.model.empty()) refuse_given(context.keys, "model.", t.model);
  if (!std::filesystem::is_directory(t.model)) {
    check(!t.tokenizer.empty(), "train: --tokenizer is needed without a model directory");
    if (!t.model.empty()) {
      const nn::ModelConfig theirs = nn::load_config(t.model);
      check_family(t, theirs, context);
      run.config.copy_sizes(theirs);
    }
    run.model = nn::make_model(run.config, context.seed);
    run.store = std::make_unique<nn::ParameterStore>(*run.model);
    return;
  }
  nn::LoadedModel loaded = nn::load_model(t.model, {.gradients = true});
  warn_of(loaded);
  check_family(t, loaded.config, context);
  const data::Schema::Field* method = context.keys.find("attention.method");
  if (method && method->given && run.config.attention != loaded.config.attention) {
    run.inputs["model"] = loaded.hash();
    run.config.copy_sizes(loaded.config);
    run.model = nn::make_student(run.config, *loaded.model, context.seed);
    run.store = std::make_unique<nn::ParameterStore>(*run.model);
    return;
  }
  train_on(run, std::move(loaded), context, t.model);
}

int Train::run(const RunContext& context) {
  TrainingRun& run = parts;
  claim_directory(run, keys);
  make_or_load(*this, context);
  run.tokenizer = tokenizer.empty() ? nn::tokenizer_of(nn::resolve_model(model))
                                    : data::load_tokenizer(tokenizer);
  check(run.config.shape().causal, "train: next-token prediction needs a causal model");
  int64_t vocab = run.tokenizer->vocab_size();
  check(vocab <= run.config.shape().vocab_size, "train: the tokenizer has ", vocab,
        " tokens, the model only ", run.config.shape().vocab_size, " (model.vocab_size)");
  compare_vocabularies(run.config, *run.tokenizer);
  int64_t window = keys.sequence_length ? keys.sequence_length : run.config.shape().max_positions;
  check(window <= run.config.shape().max_positions, "train: sequence_length ", window,
        " is longer than the model's ", run.config.shape().max_positions, " positions");
  run.inputs["tokenizer"] = run.tokenizer->hash();
  run.train = windows_of(load_texts(run, "train", train, window, keys.copies), window, context.seed,
                         keys.copies);
  if (!keys.valid.empty()) {
    run.valid = windows_of(load_texts(run, "valid", keys.valid, window, keys.copies), window, 0,
                           keys.copies);
  }
  run.losses = distill::task_only();
  run.subject = join("model ", run.config.attention, " ", run.config.shape().layers, " x ",
                     run.config.shape().hidden_size);
  return run_training(run, keys, context);
}

const RegisterSubcommand<Train> registration("train", "Train a language model on text");

}  // namespace
}  // namespace brine
