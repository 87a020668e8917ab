// Finetuning an encoder on a task: the teacher of a distillation on that task.
#pragma once

#include <string>

#include "distill/runs/settings/training_settings.h"
#include "distill/runs/task_run.h"

namespace brine::distill {

struct Finetuning {
  std::string model;      // directory of an encoder, or a config.json with the sizes of a new one
  std::string tokenizer;  // tokenizer directory; empty: the one next to the model
  TaskSettings task{.task = "wordnet", .data = {}, .valid_split = {}, .warmup_ratio = 0.1};
  double epochs = 3;
  TrainingSettings training;  // empty settings: as Devlin et al. (2019) fine-tune BERT

  void describe(data::Schema& s);
};

// Decides the empty settings of `what`, loads everything and checks it.
std::unique_ptr<TrainingRun> prepare(Finetuning& what, const RunOptions& options,
                                     const RunHost& host);

}  // namespace brine::distill
