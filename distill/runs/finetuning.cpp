// Finetuning an encoder on a task: what is read, checked and decided before training starts.
#include "distill/runs/finetuning.h"

#include <nlohmann/json.hpp>

#include "data/io/json.h"
#include "data/io/utf8.h"

namespace brine::distill {
namespace {

TrainingSettings finetuning_settings() {
  TrainingSettings defaults;
  defaults.sequence_length = 0;
  defaults.batch_size = 32;
  defaults.recompute = false;
  defaults.learning_rate = 2e-5;
  defaults.attention_learning_rate = 2e-5;
  defaults.schedule = nn::Decay::linear;
  return defaults;
}

// The encoder of a directory, or a new one with the sizes of a config.json.
nn::LoadedModel load_or_make(const std::string& path, const RunHost& host) {
  if (nn::is_model_path(path)) return load_model(path, host.messages);
  nn::LoadedModel made;
  made.config = nn::load_config(path);
  made.model = nn::make_model(made.config, host.seed);
  made.directory = path;
  return made;
}

// The given tokenizer, the one next to the model, or of a model without weights the task's.
std::unique_ptr<data::Tokenizer> choose_tokenizer(const Finetuning& what, const data::Task& task,
                                                  const std::string& model_directory) {
  if (!what.tokenizer.empty()) return data::load_tokenizer(what.tokenizer);
  if (nn::is_model_path(what.model)) return nn::tokenizer_of(model_directory);
  check(task.tokenizer, "finetune: --tokenizer is needed without a model directory");
  return task.tokenizer();
}

}  // namespace

void Finetuning::describe(data::Schema& s) {
  s.field("task", task.task, "Task: " + data::names_of(data::tasks()));
  s.field("data", task.data,
          "Directory of GLUE, of the task (tsv: train.tsv, dev.tsv or .jsonl), or of books");
  s.field("model", model, "Directory of an encoder, or a config.json with the sizes of a new one",
          {.required = true});
  s.field("tokenizer", tokenizer, "Tokenizer directory; none: that of the model, or the task's");
  task.describe(s);
  s.field("regression", task.regression, "With --task tsv: labels are scores, not classes");
  s.field("epochs", epochs, "Passes over a task's texts, which give the steps", {.above = 0});
  training.describe(s, finetuning_settings());
}

std::unique_ptr<TrainingRun> prepare(Finetuning& what, const RunOptions& options,
                                     const RunHost& host) {
  auto run = std::make_unique<TrainingRun>();
  data::Task task = task_of(what.task.choice(), {});
  check(what.training.rest.loss_from == 0, "finetune: --loss-from has no effect on a task");
  claim_directory(*run, options, host);
  what.training.fill(finetuning_settings());
  nn::LoadedModel loaded = load_or_make(what.model, host);
  run->tokenizer = choose_tokenizer(what, task, loaded.directory);
  compare_vocabularies(loaded.config, *run->tokenizer, host.messages);
  task.labels =
      data::labels_of(task, what.task.data, data::split_named(task, what.task.train_split));
  make_task_model(*run, loaded, {task, task.labels, what.task.labels}, host);
  if (!what.tokenizer.empty() || !nn::is_model_path(what.model))
    clear_other_tokens(*run, what.model);
  run->inputs = {{"model", loaded.hash()}, {"tokenizer", run->tokenizer->hash()}};
  const int64_t max_tokens = *what.training.sequence_length;
  use_task(*run, what.task, read_train_split(*run, what.task, run->config, max_tokens, host),
           max_tokens, host);
  what.training.plan_epochs(what.epochs, what.task.warmup_ratio, run->train->size());
  run->losses = task_only();
  run->trainer = what.training.resolved();
  run->settings = json_text(data::schema_of(what).to_json());
  run->subject = join("encoder for ", task.name, ", ", run->config.shape().layers, " x ",
                      run->config.shape().hidden_size);
  return run;
}

}  // namespace brine::distill
