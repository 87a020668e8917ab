// What `brine eval --task` and `brine predict --task` do.
#pragma once

#include <string>
#include <vector>

#include "apps/shared/task_run.h"

namespace brine {

struct TaskEvaluation {
  std::string task;
  std::vector<std::string> data;  // one directory at most
  std::string split;              // empty: every dev split
  std::string teacher;            // whose attention the masks should cover; empty: no mask recall
  int64_t max_tokens = 0;         // 0 = the model's positions
  bool json = false;
  distill::TaskCall answer;
};

// Prints the metrics of each split with the mean visible length and the share of keys kept; with a
// teacher also the mask recall by layer.
int eval_task(nn::LoadedModel& model, const data::Tokenizer& tokenizer, const TaskEvaluation& call);

// Writes the prediction file of each chosen split (none: every test split) to the directory `out`.
int predict_task(nn::LoadedModel& model, const data::Tokenizer& tokenizer,
                 const TaskEvaluation& call, const std::string& out);

}  // namespace brine
