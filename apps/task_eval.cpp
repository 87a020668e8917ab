// Scores and prediction files.
#include "apps/task_eval.h"

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/device_memory.h"
#include "apps/recall_observer.h"
#include "apps/terminal.h"
#include "tensor/json.h"

namespace brine {
namespace {

// A split with a model's answers to it.
struct Answered {
  TaskSet set;
  distill::TaskAnswers answers;
  nn::Json recall = {};  // null without a teacher
};

Answered answer_split(distill::LoadedModel& m, const data::Tokenizer& tokenizer,
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
  std::unique_ptr<RecallObserver> recall;
  if (!call.teacher.empty()) {
    recall = std::make_unique<RecallObserver>(distill::load_model(call.teacher), m, how.dials.k);
    how.observer = recall.get();
    how.before_batch = [&](const distill::Batch& batch) { recall->begin(batch); };
  }
  distill::TaskAnswers answers = distill::answer(*m.model, *set.source, how);
  return {std::move(set), std::move(answers), recall ? recall->table() : nn::Json()};
}

// The k that counts: the given one, or the method's own; null for a method without one.
nn::Json kept_keys_of(const nn::ModelConfig& config, int64_t given) {
  nn::Schema settings;
  config.method().describe(settings);
  nn::Json own = settings.to_json();
  if (!own.contains("k")) return nn::Json();
  return given ? nn::Json(given) : own["k"];
}

nn::Json row_of(const data::Task& task, const Answered& a) {
  nn::Json row;
  for (auto& [name, value] : distill::score_answers(task, *a.set.source, a.answers)) {
    row[name] = value;
  }
  row["texts"] = a.answers.predictions.size();
  row["mean_visible_length"] = a.answers.mean_length;
  row["keys_kept"] = a.answers.kept_keys ? nn::Json(*a.answers.kept_keys) : nn::Json();
  return row;
}

}  // namespace

int eval_task(distill::LoadedModel& m, const data::Tokenizer& tokenizer,
              const TaskEvaluation& call) {
  const data::Task& task = data::task_named(call.task);
  nn::Json out = {{"model", m.directory},
                  {"task", task.name},
                  {"attention", m.config.attention},
                  {"k", kept_keys_of(m.config, call.answer.dials.k)},
                  {"splits", nn::Json::object()}};
  for (const data::TaskSplit& split : chosen_splits(task, call.split, "dev")) {
    check(split.labelled, "eval: split ", split.name, " of ", task.name, " has no labels");
    Answered answered = answer_split(m, tokenizer, call, task, split);
    nn::Json row = row_of(task, answered);
    out["splits"][split.name] = row;
    if (!answered.recall.is_null()) out["splits"][split.name]["mask_recall"] = answered.recall;
    if (call.json) continue;
    std::cout << task.name << " " << split.name;
    for (auto& [name, value] : row.items()) std::cout << "  " << name << " " << value;
    std::cout << "\n";
    if (!answered.recall.is_null()) print_recall(answered.recall);
  }
  add_peak_memory(out);
  if (call.json) std::cout << json_text(out) << std::endl;
  return 0;
}

int predict_task(distill::LoadedModel& m, const data::Tokenizer& tokenizer,
                 const TaskEvaluation& call, const std::string& out) {
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
