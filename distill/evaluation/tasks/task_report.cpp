// A model's scores on the splits of a task.
#include "distill/evaluation/tasks/task_report.h"

#include <nlohmann/json.hpp>

#include "data/io/json.h"
#include "distill/evaluation/recall_observer.h"

namespace brine::distill {
namespace {

// A split with a model's answers to it.
struct Answered {
  TaskSet set;
  TaskAnswers answers;
  std::vector<MaskRow> recall = {};  // none without a teacher
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
  std::unique_ptr<RecallObserver> recall;
  if (!call.teacher.empty()) {
    recall = RecallObserver::make(call.teacher, m, how.options.k);
    how.observer = recall.get();
    how.before_batch = [&](const Batch& batch) { recall->begin(batch); };
    how.measures = {recall.get()};
  }
  TaskAnswers answers = answer(*m.model, *set.source, how);
  warn_if_all_kept(m.config, call.answer.options.k, set.source->window(), messages);
  const bool watched = recall && learns_mask(*m.model);
  const std::string warning = watched ? degenerate_warning(mask_health(recall->layers())) : "";
  if (!warning.empty()) messages.warning("eval: ", warning);
  return {std::move(set), std::move(answers), recall ? recall->rows() : std::vector<MaskRow>()};
}

SplitResult result_of(const data::Task& task, const std::string& split, const Answered& a) {
  const std::vector<double> truth = truth_of(*a.set.source, a.answers);
  const std::vector<std::string>& labels = a.set.source->tokens().labels;
  return {.name = split,
          .scores = score_task(task, a.answers.predictions, truth),
          .intervals = score_intervals(task, a.answers.predictions, truth),
          .labels = labels,
          .confusion = labels.empty()
                           ? std::vector<int64_t>()
                           : confusion(int64_t(labels.size()), a.answers.predictions, truth),
          .texts = int64_t(a.answers.predictions.size()),
          .mean_visible_length = a.answers.mean_length,
          .keys_kept = a.answers.kept_keys,
          .mask_recall = a.recall};
}

}  // namespace

std::optional<int64_t> kept_keys_of(const nn::ModelConfig& config, int64_t asked) {
  const std::optional<int64_t> k = config.method().mask().k;
  return k && asked ? asked : k;
}

TaskResult evaluate_task(nn::LoadedModel& m, const data::Tokenizer& tokenizer,
                         const TaskEvaluation& given, const Messages& messages) {
  TaskEvaluation call = given;
  const nn::ClassHead head = m.config.family().class_head();
  const data::Task task =
      task_of({.task = call.task, .fields = call.fields, .labels = call.labels}, head);
  const std::vector<std::string> labels =
      data::labels_of(task, call.data.empty() ? "" : call.data.front(), task.splits.front());
  call.answer.classes = class_map(head, {task, labels, call.labels}, messages);
  check(takes_pairs(head).value_or(task.pairs()) == task.pairs(), "eval: ", m.directory,
        " was made for ", task.pairs() ? "single texts" : "pairs", ", the task has ",
        task.pairs() ? "pairs" : "single texts");
  TaskResult out{.model = m.directory,
                 .task = task.name,
                 .attention = m.config.attention,
                 .k = kept_keys_of(m.config, call.answer.options.k)};
  for (const data::TaskSplit& split : chosen_splits(task, call.split)) {
    check(split.labelled, "eval: split ", split.name, " of ", task.name, " has no labels");
    out.splits.push_back(
        result_of(task, split.name, answer_split(m, tokenizer, call, task, split, messages)));
  }
  out.peak = device_peak();
  return out;
}

data::Json to_json(const TaskResult& result) {
  data::Json out = {{"model", result.model},
                    {"task", result.task},
                    {"attention", result.attention},
                    {"k", or_null(result.k)},
                    {"splits", data::Json::object()}};
  for (const SplitResult& split : result.splits) {
    data::Json row;
    for (const auto& [name, value] : split.scores) row[name] = value;
    for (size_t i = 0; i < split.scores.size(); ++i)
      row["interval_95"][split.scores[i].first] = {split.intervals[i].low, split.intervals[i].high};
    if (const auto n = std::ptrdiff_t(split.labels.size())) {
      row["confusion"] = {{"labels", split.labels}, {"rows", data::Json::array()}};
      for (auto at = split.confusion.begin(); at != split.confusion.end(); at += n)
        row["confusion"]["rows"].push_back(std::vector<int64_t>(at, at + n));
    }
    row["texts"] = split.texts;
    row["mean_visible_length"] = split.mean_visible_length;
    row["keys_kept"] = or_null(split.keys_kept);
    if (!split.mask_recall.empty()) row["mask_recall"] = to_json(split.mask_recall);
    out["splits"][split.name] = row;
  }
  add_json(out, result.peak);
  return out;
}

}  // namespace brine::distill
