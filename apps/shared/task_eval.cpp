// Scores and prediction files.
#include "apps/shared/task_eval.h"

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/cli/terminal.h"
#include "apps/shared/device_memory.h"
#include "data/io/json.h"
#include "distill/evaluation/recall_observer.h"

namespace brine {
namespace {

// A split with a model's answers to it.
struct Answered {
  TaskSet set;
  distill::TaskAnswers answers;
  data::Json recall = {};  // null without a teacher
};

Answered answer_split(nn::LoadedModel& m, const data::Tokenizer& tokenizer,
                      const TaskEvaluation& call, const data::Task& task,
                      const data::TaskSplit& split) {
  check(call.data.size() <= 1, "task ", task.name, ": has one directory of data, not ",
        call.data.size());
  TaskSet set = read_split({.task = task,
                            .data = call.data.empty() ? "" : call.data.front(),
                            .tokenizer = tokenizer,
                            .config = m.config,
                            .max_tokens = call.max_tokens},
                           split);
  distill::TaskCall how = call.answer;
  how.classes = class_map(m.config, set.source->tokens().labels);
  std::unique_ptr<distill::RecallObserver> recall;
  if (!call.teacher.empty()) {
    recall =
        std::make_unique<distill::RecallObserver>(nn::load_model(call.teacher), m, how.dials.k);
    how.observer = recall.get();
    how.before_batch = [&](const distill::Batch& batch) { recall->begin(batch); };
  }
  distill::TaskAnswers answers = distill::answer(*m.model, *set.source, how);
  return {std::move(set), std::move(answers), recall ? recall->table() : data::Json()};
}

// The k that counts: the given one, or the method's own; null for a method without one.
data::Json kept_keys_of(const nn::ModelConfig& config, int64_t given) {
  data::Schema settings;
  config.method().describe(settings);
  data::Json own = settings.to_json();
  if (!own.contains("k")) return data::Json();
  return given ? data::Json(given) : own["k"];
}

data::Json row_of(const data::Task& task, const Answered& a) {
  data::Json row;
  for (auto& [name, value] : distill::score_answers(task, *a.set.source, a.answers)) {
    row[name] = value;
  }
  row["texts"] = a.answers.predictions.size();
  row["mean_visible_length"] = a.answers.mean_length;
  row["keys_kept"] = a.answers.kept_keys ? data::Json(*a.answers.kept_keys) : data::Json();
  return row;
}

}  // namespace

int eval_task(nn::LoadedModel& m, const data::Tokenizer& tokenizer, const TaskEvaluation& call) {
  const data::Task& task = data::task_named(call.task);
  data::Json out = {{"model", m.directory},
                    {"task", task.name},
                    {"attention", m.config.attention},
                    {"k", kept_keys_of(m.config, call.answer.dials.k)},
                    {"splits", data::Json::object()}};
  for (const data::TaskSplit& split : chosen_splits(task, call.split, "dev")) {
    check(split.labelled, "eval: split ", split.name, " of ", task.name, " has no labels");
    Answered answered = answer_split(m, tokenizer, call, task, split);
    data::Json row = row_of(task, answered);
    out["splits"][split.name] = row;
    if (!answered.recall.is_null()) out["splits"][split.name]["mask_recall"] = answered.recall;
    if (call.json) continue;
    std::cout << task.name << " " << split.name;
    for (auto& [name, value] : row.items()) std::cout << "  " << name << " " << value;
    std::cout << "\n";
    if (!answered.recall.is_null()) distill::print_recall(answered.recall);
  }
  add_peak_memory(out);
  if (call.json) std::cout << json_text(out) << std::endl;
  return 0;
}

int predict_task(nn::LoadedModel& m, const data::Tokenizer& tokenizer, const TaskEvaluation& call,
                 const std::string& out) {
  const data::Task& task = data::task_named(call.task);
  check(!task.passages, "predict: ", task.name, " has no prediction file");
  std::filesystem::create_directories(out);
  for (const data::TaskSplit& split : chosen_splits(task, call.split, "test")) {
    Answered a = answer_split(m, tokenizer, call, task, split);
    data::Path file =
        data::Path(out) /
        (split.submission.empty() ? task.name + "-" + split.name + ".tsv" : split.submission);
    data::write_predictions(file, task, a.set.source->tokens().labels, a.set.indices,
                            a.answers.predictions);
    log_info(file.string(), ": ", a.answers.predictions.size(), " predictions");
  }
  return 0;
}

}  // namespace brine
