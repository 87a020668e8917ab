// A model's scores on the splits of a task.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "distill/evaluation/health/mask_health.h"
#include "distill/evaluation/tasks/evaluate_task.h"
#include "distill/inputs/task_split.h"
#include "distill/log/device_memory.h"
#include "distill/log/values.h"
#include "nn/io/model_io.h"

namespace brine::distill {

struct TaskEvaluation {
  std::string task = {};
  std::vector<std::string> data = {};    // one directory at most
  std::string split = {};                // empty: every dev split
  std::string fields = {}, labels = {};  // as in TaskChoice
  std::string teacher = {};  // whose attention the masks should cover; empty: no mask recall
  int64_t max_tokens = 0;    // 0 = the model's positions
  TaskCall answer = {};
};

struct SplitResult {
  std::string name;
  Values scores;                         // metrics of the task
  std::vector<Interval> intervals = {};  // of each, for 95 %
  std::vector<std::string> labels = {};  // by class; empty: a regression
  std::vector<int64_t> confusion = {};   // counts by true class (rows) and predicted one
  int64_t texts = 0;
  double mean_visible_length = 0;
  std::optional<double> keys_kept = {};
  std::vector<MaskRow> mask_recall = {};  // none without a teacher
};
struct TaskResult {
  std::string model, task, attention;
  std::optional<int64_t> k = {};
  std::vector<SplitResult> splits = {};
  std::optional<DevicePeak> peak = {};
};
TaskResult evaluate_task(nn::LoadedModel& model, const data::Tokenizer& tokenizer,
                         const TaskEvaluation& call, const Messages& messages);
// "model", "task", "attention", "k" and under "splits" for each split its metrics, "interval_95"
// with [low, high] of each, "confusion" ("labels", "rows"; not of a regression), "texts",
// "mean_visible_length", "keys_kept" and, with a teacher, "mask_recall" by layer.
data::Json to_json(const TaskResult& result);

// The k in use: `asked`, or for 0 the method's default; none for a method without one.
std::optional<int64_t> kept_keys_of(const nn::ModelConfig& config, int64_t asked);

}  // namespace brine::distill
