// brine train: a model from scratch, or one trained on, by next-token prediction.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/config_file.h"
#include "apps/training.h"
#include "data/file_io.h"
#include "distill/model_io.h"

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

  void describe(nn::Schema& s) {
    s.field("model", model,
            "Model directory to train on from, or a config.json with the sizes; none: [decoder]");
    s.field("tokenizer", tokenizer, "Tokenizer directory; none: the one beside the model");
    s.field("train", train, "Text files to train on", {.required = true});
    keys.describe(s);
    s.section("decoder", parts.config.opt);
    parts.config.describe_attention(s);
  }

  int run(const RunContext& context);
};

// The weights of a directory under the attention method that was asked for, or new ones.
void make_or_load(Train& t, uint64_t seed, bool attention_given) {
  TrainingRun& run = t.parts;
  bool directory = !t.model.empty() && std::filesystem::is_directory(t.model);
  if (!directory) {
    if (!t.model.empty()) {
      nn::ModelConfig file =
          nn::from_hf_config(nn::Json::parse(data::read_file(t.model), nullptr, false), t.model);
      run.config.opt = file.opt;
    }
    run.model = nn::make_model(run.config, seed);
    run.store = std::make_unique<nn::ParameterStore>(*run.model);
    return;
  }
  distill::LoadedModel loaded = distill::load_model(t.model);
  if (!attention_given || run.config.attention == loaded.config.attention) {
    run.config = std::move(loaded.config);
    run.model = loaded.model;
    run.store = std::move(loaded.store);
    return;
  }
  run.config.opt = loaded.config.opt;
  run.model = distill::make_student(run.config, *loaded.model, seed);
  run.store = std::make_unique<nn::ParameterStore>(*run.model);
}

int Train::run(const RunContext& context) {
  TrainingRun& run = parts;
  const nn::Schema::Field* method = context.keys.find("attention.method");
  make_or_load(*this, context.seed, method && method->given);
  run.tokenizer = tokenizer.empty() ? distill::tokenizer_of(distill::resolve_model(model))
                                    : data::load_tokenizer(tokenizer);
  int64_t vocab = run.tokenizer->vocab_size();
  check(vocab <= run.config.opt.vocab_size, "train: the tokenizer has ", vocab,
        " tokens, the model only ", run.config.opt.vocab_size, " (decoder.vocab_size)");
  int64_t window =
      keys.sequence_length ? keys.sequence_length : run.config.opt.max_position_embeddings;
  check(window <= run.config.opt.max_position_embeddings, "train: sequence_length ", window,
        " is longer than the model's ", run.config.opt.max_position_embeddings, " positions");
  run.train = load_windows(train, *run.tokenizer, window, context.seed, {}, keys.copies);
  if (!keys.valid.empty()) {
    run.valid = load_windows(keys.valid, *run.tokenizer, window, 0, {}, keys.copies);
  }
  run.losses = distill::task_only();
  run.subject = join("model ", run.config.attention, " ", run.config.opt.num_hidden_layers, " x ",
                     run.config.opt.hidden_size);
  return run_training(run, keys, context);
}

const RegisterSubcommand<Train> registration("train", "Train a language model on text");

}  // namespace
}  // namespace brine
