// brine finetune: a pretrained (or new) encoder learns a task; the teacher of `distill --task`.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/shared/task_run.h"
#include "data/io/file_io.h"

namespace brine {
namespace {

struct Finetune {
  std::string model, tokenizer;
  TaskKeys task{.task = "wordnet", .data = {}, .valid_split = {}, .warmup_ratio = 0.1};
  TrainingKeys keys;
  TrainingRun parts;

  // As Devlin et al. (2019) fine-tune BERT.
  Finetune() {
    keys.trainer.batch_size = 32;
    keys.trainer.optimizer.learning_rate = 2e-5;
    keys.trainer.optimizer.attention_learning_rate = 2e-5;
    keys.trainer.schedule.schedule = "linear";
  }

  void describe(data::Schema& s) {
    s.field("task", task.task, "What to learn: " + known_tasks());
    s.field(
        "data", task.data,
        "Directory of GLUE or of the task in it, of WordNet, or of books; none: the task's own");
    s.field("model", model, "Directory of an encoder, or a config.json with the sizes of a new one",
            {.required = true});
    s.field("tokenizer", tokenizer, "Tokenizer directory; none: the one beside the model");
    task.describe_training(s);
    keys.describe_run(s);
  }

  int run(const RunContext& context);
};

// The encoder of a directory, or a new one in the sizes of a config.json.
nn::LoadedModel load_or_make(const std::string& path, uint64_t seed) {
  if (std::filesystem::is_directory(path)) return nn::load_model(path);
  nn::LoadedModel made;
  made.config = nn::load_config(path);
  made.model = nn::make_model(made.config, seed);
  made.directory = path;
  return made;
}

int Finetune::run(const RunContext& context) {
  TrainingRun& run = parts;
  const data::Task& chosen = data::task_named(task.task);
  claim_directory(run, keys);
  nn::LoadedModel loaded = load_or_make(model, context.seed);
  warn_of(loaded);
  check(!tokenizer.empty() || std::filesystem::is_directory(model),
        "finetune: --tokenizer is needed without a model directory");
  run.tokenizer =
      tokenizer.empty() ? nn::tokenizer_of(loaded.directory) : data::load_tokenizer(tokenizer);
  check(run.tokenizer->vocab_size() <= loaded.config.shape().vocab_size,
        "finetune: the tokenizer has ", run.tokenizer->vocab_size(), " tokens, the model ",
        loaded.config.shape().vocab_size);
  compare_vocabularies(loaded.config, *run.tokenizer);
  make_task_model(run, loaded, chosen, labels_of(chosen, task.data), context.seed);
  run.inputs = {{"model", loaded.hash()}, {"tokenizer", run.tokenizer->hash()}};
  prepare_task(run, keys, task, context);
  run.losses = distill::task_only();
  run.subject = join("encoder for ", chosen.name, ", ", run.config.shape().layers, " x ",
                     run.config.shape().hidden_size);
  return run_training(run, keys, context);
}

const RegisterSubcommand<Finetune> registration("finetune",
                                                "Teach an encoder a task (GLUE, WordNet, books)");

}  // namespace
}  // namespace brine
