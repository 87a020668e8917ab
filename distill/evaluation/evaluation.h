// What an evaluation is: text by a protocol, or a task; of the model's own attention or another.
#pragma once

#include <optional>
#include <string>

#include "distill/evaluation/evaluate_text.h"
#include "distill/evaluation/task_report.h"

namespace brine::distill {

struct Evaluation {
  std::string attention;  // another method, without training; empty: the model's own
  std::optional<int64_t> columns, sinks;  // its settings
  std::string task, split;                // of a task: its data is one directory, in text.data
  TextEvaluation text;

  void describe(data::Schema& s);
  // The given settings of `attention`.
  AttentionSettings attention_settings() const;
  // The same settings for a task: a window is a text.
  TaskEvaluation of_task() const;
};

// Evaluates the model, which then has the attention of the request. `name`: as messages call it.
data::Json evaluate(const std::string& name, nn::LoadedModel& model,
                    const data::Tokenizer& tokenizer, const Evaluation& what,
                    const Messages& messages);
// Such an object for people, on standard output.
void print_evaluation(const data::Json& evaluation);

}  // namespace brine::distill
