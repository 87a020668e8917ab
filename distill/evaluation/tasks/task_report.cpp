// A model's scores on the splits of a task, and the prediction files of its answers.
#include "distill/evaluation/tasks/task_report.h"

#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "data/config/schema_text.h"
#include "distill/evaluation/health/mask_health.h"
#include "distill/evaluation/recall_observer.h"
#include "distill/log/device_memory.h"

namespace brine::distill {
namespace {

// A split with a model's answers to it.
struct Answered {
  TaskSet set;
  TaskAnswers answers;
  data::Json recall = {};  // null without a teacher
};

Answered answer_split(nn::LoadedModel& m, const data::Tokenizer& tokenizer,
                      const TaskEvaluation& call, const data::Task& task,
                      const data::TaskSplit& split, const Messages& messages) {
  check(call.data.size() <= 1, "task ", task.name, ": has one directory of data, not ",
        call.data.size());
  TaskSet set = read_split({.task = task,
                            .data = call.data.empty() ? "" : call.data.front(),
                            .tokenizer = tokenizer,
                            .config = m.config,
                            .max_tokens = call.max_tokens,
                            .messages = messages},
                           split);
  TaskCall how = call.answer;
  how.classes = class_map(m.config, set.source->tokens().labels);
  std::unique_ptr<RecallObserver> recall;
  if (!call.teacher.empty()) {
    recall = RecallObserver::make(call.teacher, m, {.k = how.options.k, .from = call.recall_from});
    how.observer = recall.get();
    how.before_batch = [&](const Batch& batch) { recall->begin(batch); };
    how.measures = {recall.get()};
  }
  TaskAnswers answers = answer(*m.model, *set.source, how);
  const std::string warning = recall ? degenerate_warning(mask_health(recall->layers())) : "";
  if (!warning.empty()) messages.warning("eval: ", warning);
  return {std::move(set), std::move(answers), recall ? recall->table() : data::Json()};
}

data::Json row_of(const data::Task& task, const Answered& a) {
  data::Json row;
  for (auto& [name, value] : score_answers(task, *a.set.source, a.answers)) {
    row[name] = value;
  }
  row["texts"] = a.answers.predictions.size();
  row["mean_visible_length"] = a.answers.mean_length;
  row["keys_kept"] = a.answers.kept_keys ? data::Json(*a.answers.kept_keys) : data::Json();
  return row;
}

// A setting of the attention method unless another is asked for; null where it has none.
data::Json setting_of(const nn::ModelConfig& config, const char* key, int64_t asked) {
  data::Schema settings;
  config.method().describe(settings);
  data::Json values = settings.to_json();
  if (!values.contains(key)) return data::Json();
  return asked ? data::Json(asked) : values[key];
}

}  // namespace

data::Json kept_keys_of(const nn::ModelConfig& config, int64_t asked) {
  return setting_of(config, "k", asked);
}

data::Json oversample_of(const nn::ModelConfig& config, int64_t asked) {
  return setting_of(config, "oversample", asked);
}

data::Json evaluate_task(nn::LoadedModel& m, const data::Tokenizer& tokenizer,
                         const TaskEvaluation& call, const Messages& messages) {
  const data::Task& task = data::task_named(call.task);
  data::Json out = {{"model", m.directory},
                    {"task", task.name},
                    {"attention", m.config.attention},
                    {"k", kept_keys_of(m.config, call.answer.options.k)},
                    {"oversample", oversample_of(m.config, call.answer.options.oversample)},
                    {"splits", data::Json::object()}};
  for (const data::TaskSplit& split : chosen_splits(task, call.split, "dev")) {
    check(split.labelled, "eval: split ", split.name, " of ", task.name, " has no labels");
    const Answered answered = answer_split(m, tokenizer, call, task, split, messages);
    data::Json row = row_of(task, answered);
    if (!answered.recall.is_null()) row["mask_recall"] = answered.recall;
    out["splits"][split.name] = row;
  }
  add_peak_memory(out);
  return out;
}

void print_task_evaluation(const data::Json& evaluation) {
  for (const auto& [split, row] : evaluation.at("splits").items()) {
    std::cout << evaluation.at("task").get<std::string>() << " " << split;
    for (const auto& [name, value] : row.items()) {
      if (name != "mask_recall") std::cout << "  " << name << " " << data::show(value);
    }
    std::cout << "\n";
    if (row.contains("mask_recall")) print_mask_health(row["mask_recall"]);
  }
}

void predict_task(nn::LoadedModel& m, const data::Tokenizer& tokenizer, const TaskEvaluation& call,
                  const std::string& out, const Messages& messages) {
  const data::Task& task = data::task_named(call.task);
  check(!task.passages, "predict: ", task.name, " has no prediction file");
  std::filesystem::create_directories(out);
  for (const data::TaskSplit& split : chosen_splits(task, call.split, "test")) {
    const Answered a = answer_split(m, tokenizer, call, task, split, messages);
    const data::Path file =
        data::Path(out) /
        (split.submission.empty() ? task.name + "-" + split.name + ".tsv" : split.submission);
    data::write_predictions(file, task, a.set.source->tokens().labels, a.set.indices,
                            a.answers.predictions);
    messages.info(file.string(), ": ", a.answers.predictions.size(), " predictions");
  }
}

}  // namespace brine::distill
