// What the subcommands that work on a task share: its splits as tokens, and a model with its head.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/shared/training.h"
#include "data/tasks/task_tokens.h"
#include "distill/evaluation/evaluate_task.h"

namespace brine {

// Where a task comes from and how it is trained.
struct TaskKeys {
  std::string task;
  std::string data;  // directory; empty: the task's own
  std::string train_split = "train", valid_split;
  double epochs = 3, warmup_ratio = 0;

  void describe_training(data::Schema& s);  // all but task and data
};

// Of a command that also works on text: throws at a key of TaskKeys without a task.
void refuse_task_keys(const RunContext& context);

// "cola, sst2, ..."
std::string known_tasks();

// A split of a task as tokens.
struct TaskSet {
  data::TaskSplit split;
  std::vector<int64_t> indices;  // the rows' numbers in a prediction file
  std::unique_ptr<distill::TaskSource> source;
};

// Reads a split and tokenises it; `max_tokens` 0 = the model's positions. Prints how many texts
// there are, how long, and how many were cut.
struct TaskReading {
  const data::Task& task;
  std::string data;
  const data::Tokenizer& tokenizer;
  const nn::ModelConfig& config;
  int64_t max_tokens = 0;
  uint64_t seed = 0;
};
TaskSet read_split(const TaskReading& reading, const data::TaskSplit& split);

// SHA-256 of all texts and targets, in hex.
std::string hash_of(const data::TaskTokens& tokens);

// The splits that are meant: one by its name, or every one of a kind ("dev", "test") for "".
std::vector<data::TaskSplit> chosen_splits(const data::Task& task, const std::string& name,
                                           const std::string& kind);

// The task's class for each class of the model, by their names; empty where both have the same
// order or the model's classes have no names. Throws when the model's labels are not the task's.
std::vector<int64_t> class_map(const nn::ModelConfig& config,
                               const std::vector<std::string>& labels);

// Gives `run` a model with a head for the labels, all other weights from `loaded`, whose own head
// stays when it is for the same labels.
void make_task_model(TrainingRun& run, const nn::LoadedModel& loaded, const data::Task& task,
                     const std::vector<std::string>& labels, uint64_t seed);

// Reads the splits of a run, sets steps and warm-up from the epochs where they were not given, and
// the evaluation of the dev splits. The tokenizer and the model must be there.
void prepare_task(TrainingRun& run, TrainingKeys& keys, const TaskKeys& task,
                  const RunContext& context);

}  // namespace brine
