// A model's scores on the splits of a task, and the prediction files of its answers.
#pragma once

#include <string>
#include <vector>

#include "distill/evaluation/tasks/evaluate_task.h"
#include "distill/inputs/task_split.h"
#include "nn/io/model_io.h"

namespace brine::distill {

struct TaskEvaluation {
  std::string task = {};
  std::vector<std::string> data = {};  // one directory at most
  std::string split = {};              // empty: every dev split, or every test split of predictions
  std::string teacher = {};  // whose attention the masks should cover; empty: no mask recall
  int64_t recall_from = 0;   // mask recall counts rows from this one on
  int64_t max_tokens = 0;    // 0 = the model's positions
  TaskCall answer = {};
};

// "model", "task", "attention", "k" and under "splits" for each split its metrics, "texts",
// "mean_visible_length" and "keys_kept"; with a teacher also "mask_recall" by layer.
data::Json evaluate_task(nn::LoadedModel& model, const data::Tokenizer& tokenizer,
                         const TaskEvaluation& call, const Messages& messages);
// A line for each split of such an object, with a table below where it has mask recall.
void print_task_evaluation(const data::Json& evaluation);

// Writes the prediction file of each chosen split to the directory `out`.
void predict_task(nn::LoadedModel& model, const data::Tokenizer& tokenizer,
                  const TaskEvaluation& call, const std::string& out, const Messages& messages);

// The k in use: `asked`, or for 0 the method's default; null for a method without one.
data::Json kept_keys_of(const nn::ModelConfig& config, int64_t asked);
// The same of the candidates for each kept key.
data::Json oversample_of(const nn::ModelConfig& config, int64_t asked);

}  // namespace brine::distill
