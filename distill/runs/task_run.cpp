// Runs on a task: its splits as tokens, a model with the task's head, and its evaluation.
#include "distill/runs/task_run.h"

#include <algorithm>

namespace brine::distill {
namespace {

// "" for a task's only dev split, "matched_" for one of several.
std::string prefix_of(const data::TaskSplit& split, size_t splits) {
  size_t at = split.name.find('_');
  return splits == 1 || at == std::string::npos ? "" : split.name.substr(at + 1) + "_";
}

TaskReading reading_of(const TrainingRun& run, const data::Task& task, const TaskSettings& settings,
                       const nn::ModelConfig& config, int64_t max_tokens, const RunHost& host) {
  return {.task = task,
          .data = settings.data,
          .tokenizer = *run.tokenizer,
          .config = config,
          .max_tokens = max_tokens,
          .seed = host.seed,
          .messages = host.messages};
}

}  // namespace

void TaskSettings::describe(data::Schema& s) {
  s.field("train_split", train_split, "Split of the task to train on, or a TSV file in its folder");
  s.field("valid_split", valid_split,
          "Split to evaluate on while training, or such a file; none: every dev split");
  s.field("fields", fields, kFieldsHelp);
  s.field("labels", labels, kLabelsHelp);
  s.field("warmup_ratio", warmup_ratio,
          "Share of a task's steps that warm up; gives warmup_steps unless given",
          {.min = 0, .max = 1});
}

void make_task_model(TrainingRun& run, const nn::LoadedModel& loaded, const ClassNames& classes,
                     const RunHost& host) {
  check(!loaded.config.shape().causal, "task: ", loaded.directory,
        " is a decoder, a task needs an encoder");
  const bool both_full =
      nn::is_full_attention(loaded.config.attention) && nn::is_full_attention(run.config.attention);
  check(loaded.config.attention == run.config.attention || both_full, "task: ", loaded.directory,
        " has attention '", loaded.config.attention, "', wanted '", run.config.attention, "'");
  run.config.copy_sizes(loaded.config);
  nn::FamilyConfig& family = run.config.family();
  const nn::ClassHead before = family.class_head();
  const int64_t count = std::max<int64_t>(int64_t(classes.labels.size()), 1);  // a regression: one
  bool same = before.labels == count && before.names == classes.labels;
  const bool named = !before.names.empty() && !is_of_other_task(before, classes.task);
  if (before.labels == count && (named || !classes.pairs.empty())) {
    // Throws if they contradict the task's. use_task() warns about those of GLUE.
    class_map(before, classes, classes.task.user_files ? host.messages : Messages());
    same = true;
  }
  family.set_class_head({.labels = count,
                         .names = same ? before.names : classes.labels,
                         .task = recorded_name(classes.task)});
  if (before.labels > 0 && !same) {
    host.messages.info(
        loaded.directory, ": its head of ", before.labels, " classes",
        before.names.empty() ? " without names" : " from '" + before.names[0] + "' on",
        " is replaced by a new one of ", count, " for ", classes.task.name);
  }
  run.model = nn::make_model(run.config, host.seed);
  std::vector<NamedTensor> base;
  const nn::ClassHeadTensors tensors = family.class_head_tensors();
  auto is_head = [&](const std::string& name) { return name.starts_with(tensors.head); };
  std::vector<std::string> names;
  for (NamedTensor& t : nn::state_of(*run.model)) names.push_back(t.name);
  for (NamedTensor& t : nn::state_of(*loaded.model)) {
    bool known = std::find(names.begin(), names.end(), t.name) != names.end();
    if (known && (same || !is_head(t.name))) base.push_back(t);
  }
  nn::load_state(*run.model, base, loaded.directory, [&](const std::string& name) {
    return is_head(name) || name.starts_with(tensors.below);
  });
  run.store = std::make_unique<nn::ParameterStore>(*run.model);
}

TaskSet read_train_split(const TrainingRun& run, const TaskSettings& settings,
                         const nn::ModelConfig& config, int64_t max_tokens, const RunHost& host) {
  const data::Task task = task_of(settings.choice(), config.family().class_head());
  TaskSet train = read_split(reading_of(run, task, settings, config, max_tokens, host),
                             data::split_named(task, settings.train_split));
  check(train.source->tokens().labelled, "task ", task.name, ": split ", settings.train_split,
        " has no labels");
  return train;
}

void use_task(TrainingRun& run, const TaskSettings& settings, TaskSet train, int64_t max_tokens,
              const RunHost& host) {
  const nn::ClassHead head = run.config.family().class_head();
  const data::Task task = task_of(settings.choice(), head);
  const TaskReading reading = reading_of(run, task, settings, run.config, max_tokens, host);
  auto dev = std::make_shared<std::vector<TaskSet>>();
  for (const data::TaskSplit& split : chosen_splits(task, settings.valid_split)) {
    check(split.labelled, "task ", task.name, ": split ", split.name, " has no labels");
    dev->push_back(read_split(reading, split));
    run.inputs[split.name] = hash_of(dev->back().source->tokens());
  }
  run.inputs[settings.train_split] = hash_of(train.source->tokens());
  const std::vector<int64_t> map =
      class_map(head, {task, train.source->tokens().labels, settings.labels}, host.messages);
  if (!map.empty()) {  // training counts in the model's classes, the evaluation in the task's
    auto tokens = std::make_shared<data::TaskTokens>(train.source->tokens());
    for (double& target : tokens->targets)
      target = double(std::find(map.begin(), map.end(), int64_t(target)) - map.begin());
    train.source = std::make_unique<TaskSource>(tokens, host.seed);
  }
  run.train = std::move(train.source);
  run.evaluation = [&run, task, dev, map] {
    Values all;
    for (const TaskSet& set : *dev) {
      TaskAnswers answers = answer(*run.model, *set.source,
                                   {.batch_size = run.trainer.batch_size,
                                    .max_texts = run.trainer.eval_windows,
                                    .classes = map});
      for (auto& [name, value] : score_answers(task, *set.source, answers)) {
        all.emplace_back("valid_" + prefix_of(set.split, dev->size()) + name, value);
      }
    }
    return all;
  };
}

}  // namespace brine::distill
