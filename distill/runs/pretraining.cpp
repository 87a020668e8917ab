// Training a causal model by next-token prediction: what is read, checked and decided before it
// starts.
#include "distill/runs/pretraining.h"

#include <nlohmann/json.hpp>

#include "data/codec/checksums.h"
#include "data/io/json.h"

namespace brine::distill {
namespace {

TrainingSettings pretraining_settings() {
  TrainingSettings defaults;
  defaults.sequence_length = 0;
  defaults.steps = 1000;
  defaults.batch_size = 8;
  defaults.eval_every = 0;
  defaults.warmup_steps = 0;
  defaults.recompute = false;
  defaults.learning_rate = 1e-3;
  defaults.attention_learning_rate = 1e-3;
  defaults.schedule = nn::Decay::constant;
  return defaults;
}

// Family and sizes that were chosen must be those of the model.
void check_sizes(Pretraining& what, nn::ModelConfig theirs) {
  data::Schema wanted, actual;
  what.config.describe_model(wanted);
  theirs.describe_model(actual);
  refuse_other(what.size_keys, "model", wanted.to_json().at("model"), actual.to_json().at("model"),
               what.model);
}

// New weights with the sizes of `config`; unless given, as many embeddings as the tokenizer has
// tokens.
void make_new(TrainingRun& run, Pretraining& what, uint64_t seed) {
  if (!what.model.empty()) {
    const nn::ModelConfig theirs = nn::load_config(what.model);
    check_sizes(what, theirs);
    run.inputs["model"] = data::sha256_hex(json_text(nn::sizes_to_json(theirs)));
    what.config.copy_sizes(theirs);
  } else if (!what.size_keys.count("vocab_size")) {
    data::Schema sizes;
    what.config.describe_model(sizes);
    if (sizes.find("model.vocab_size")) sizes.set("model.vocab_size", run.tokenizer->vocab_size());
  }
  run.config = what.config;
  run.model = nn::make_model(run.config, seed);
  run.store = std::make_unique<nn::ParameterStore>(*run.model);
}

// The weights of a directory, with the requested attention method.
void load(TrainingRun& run, Pretraining& what, const RunHost& host) {
  nn::LoadedModel loaded = load_model(what.model, host.messages, {.gradients = true});
  check_sizes(what, loaded.config);
  const bool other_method =
      what.attention_keys.count("method") && what.config.attention != loaded.config.attention;
  if (!other_method) {
    refuse_other_attention(what.attention_keys, what.config, loaded, what.model);
    return train_on(run, what.config, std::move(loaded));
  }
  run.inputs["model"] = loaded.hash();
  what.config.copy_sizes(loaded.config);
  run.config = what.config;
  run.model = nn::make_student(run.config, *loaded.model, host.seed);
  run.store = std::make_unique<nn::ParameterStore>(*run.model);
}

}  // namespace

void Pretraining::describe(data::Schema& s) {
  s.field("tokenizer", tokenizer, "Tokenizer directory; none: the one next to the model");
  s.field("train", train, "Text files or token shards to train on", {.required = true});
  s.field("valid", valid, "Text files or token shards to evaluate on");
  s.fixed("copies", {"1"});  // of files of earlier versions
  training.describe(s, pretraining_settings());
  s.field("model.from", model,
          "Model directory to train on from, or a config.json with the sizes; none: [model]",
          {.alias = "model"});
  config.describe(s);
  s.collect("model", size_keys);
  s.collect("attention", attention_keys);
}

std::unique_ptr<TrainingRun> prepare(Pretraining& what, const RunOptions& options,
                                     const RunHost& host) {
  auto run = std::make_unique<TrainingRun>();
  claim_directory(*run, options, host);
  what.training.fill(pretraining_settings());
  const bool trained = nn::is_model_path(what.model);
  check(trained || !what.tokenizer.empty(),
        "train: --tokenizer is needed without a model directory");
  run->tokenizer = what.tokenizer.empty() ? nn::tokenizer_of(nn::resolve_model(what.model))
                                          : data::load_tokenizer(what.tokenizer);
  if (trained) {
    load(*run, what, host);
  } else {
    make_new(*run, what, host.seed);
  }
  if (!what.tokenizer.empty()) clear_other_tokens(*run, what.model);
  check(run->config.shape().causal, "train: next-token prediction needs a causal model");
  compare_vocabularies(run->config, *run->tokenizer, host.messages);
  const int64_t window = window_of(*what.training.sequence_length, run->config, "train");
  run->inputs["tokenizer"] = run->tokenizer->hash();
  use_text(*run, {.role = "train", .train = what.train, .valid = what.valid, .window = window},
           host);
  run->losses = task_only();
  run->trainer = what.training.resolved();
  run->settings = json_text(data::schema_of(what).to_json());
  run->subject = join("model ", run->config.attention, " ", run->config.shape().layers, " x ",
                      run->config.shape().hidden_size);
  return run;
}

}  // namespace brine::distill
