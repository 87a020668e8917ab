// Splits of a task as the batches that a model reads.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/tasks/task_tokens.h"
#include "distill/batches/task_source.h"
#include "distill/log/messages.h"
#include "nn/models/model_config.h"

namespace brine::distill {

// The classes of a model: their names, or what transformers calls those without.
std::vector<std::string> names_of(const nn::ClassHead& head);

// A task as a command chooses it.
struct TaskChoice {
  std::string task = {};
  // Of --task tsv, "text,label" or "text,second,label": columns or keys of its files; empty: those
  // that the head was trained with, else "text,label".
  std::string fields = {};
  std::string labels = {};  // as ClassNames::pairs
  bool regression = false;  // of --task tsv for a head that is not yet one
};
inline constexpr const char* kFieldsHelp =
    "With --task tsv: TEXT,LABEL or TEXT,SECOND,LABEL; none: the model's, or text,label";
// The task for a model with this head, or none yet. User files have the labels that `labels` says,
// or the head's names; without either they are read from the files.
data::Task task_of(const TaskChoice& choice, const nn::ClassHead& head);
// What a head says of the task that it was trained for, with the fields of user files.
std::string recorded_name(const data::Task& task);
// The fields of texts in user files that a head was trained with, "text" for another.
std::string text_fields(const nn::ClassHead& head);
// Whether a head was made for pairs of texts, if it says so.
std::optional<bool> takes_pairs(const nn::ClassHead& head);

// A split of a task as tokens.
struct TaskSet {
  data::TaskSplit split;
  std::unique_ptr<TaskSource> source;
};

// Reads a split and tokenises it; `max_tokens` 0 = the model's positions. Reports how many texts
// there are, their lengths, and how many were cut.
struct TaskReading {
  const data::Task& task;
  std::string data;
  const data::Tokenizer& tokenizer;
  const nn::ModelConfig& config;
  int64_t max_tokens = 0;
  uint64_t seed = 0;
  Messages messages = {};
};
TaskSet read_split(const TaskReading& reading, const data::TaskSplit& split);

// SHA-256 of all texts and targets, in hex.
std::string hash_of(const data::TaskTokens& tokens);

// The selected splits: one by its name, or for "" every dev split.
std::vector<data::TaskSplit> chosen_splits(const data::Task& task, const std::string& name);

// What a model's classes mean in a task.
struct ClassNames {
  const data::Task& task;
  std::vector<std::string> labels;  // of the task, by class
  // --labels: "0=negative,1=positive", for each of these the name of the model's class; may be
  // empty
  std::string pairs = {};
};
inline constexpr const char* kLabelsHelp =
    "The model's names of the task's classes, 0=negative,1=positive; none: by name, else by id";
// Whether a head was made for another known task.
bool is_of_other_task(const nn::ClassHead& head, const data::Task& task);
// The task's class for each class of the model: as said, by their names whatever their case, or,
// for names of the model's own, in the order of the ids, with a warning; empty when both have the
// same order. Throws when the model's labels are not the task's.
std::vector<int64_t> class_map(const nn::ClassHead& head, const ClassNames& names,
                               const Messages& messages);

}  // namespace brine::distill
