// Runs on a task: its splits as tokens, a model with the task's head, and its evaluation.
#pragma once

#include <string>

#include "distill/evaluation/tasks/evaluate_task.h"
#include "distill/inputs/task_split.h"
#include "distill/runs/training_run.h"

namespace brine::distill {

// Which task, and which of its splits.
struct TaskSettings {
  std::string task = {};  // empty: the run uses text
  std::string data = {};  // directory; empty: the task's
  std::string train_split = "train";
  std::string valid_split = {};  // empty: every dev split
  std::string fields = {};       // these three as in TaskChoice
  std::string labels = {};
  bool regression = false;
  double warmup_ratio = 0;

  void describe(data::Schema& s);  // all but task, data and regression
  TaskChoice choice() const { return {task, fields, labels, regression}; }
};

// Gives `run` a model with a head for the labels and all other weights from `loaded`, whose
// head is kept, with its names, when it has the same labels or names of its own for as many.
void make_task_model(TrainingRun& run, const nn::LoadedModel& loaded, const ClassNames& classes,
                     const RunHost& host);

// The split to train on, read with a run's tokenizer and the positions of `config`.
TaskSet read_train_split(const TrainingRun& run, const TaskSettings& settings,
                         const nn::ModelConfig& config, int64_t max_tokens, const RunHost& host);

// Reads the other splits of a run, records the hashes of all, and sets the batches to train on and
// the evaluation of the dev splits. The evaluation reads members of `run` when it is called.
void use_task(TrainingRun& run, const TaskSettings& settings, TaskSet train, int64_t max_tokens,
              const RunHost& host);

}  // namespace brine::distill
