// What an evaluation is: text by a protocol, a task, or a suite; of the model's attention or
// another.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "distill/evaluation/evaluate_text.h"
#include "distill/evaluation/suites/suite.h"
#include "distill/evaluation/tasks/task_report.h"

namespace brine::distill {

struct Evaluation {
  OtherAttention attention;                 // for use_attention(), which evaluate() does not call
  std::string task, split, fields, labels;  // of a task: its data is one directory, in text.data
  TextEvaluation text;
  std::vector<int64_t> k;  // several only for a suite; empty: as trained
  SuiteGrid suite;
  uint64_t seed = 1;  // of the suite's prompts

  void describe(data::Schema& s);
  // The settings of one kind of evaluation. For a task a window is a text.
  TextEvaluation of_text() const;
  TaskEvaluation of_task() const;
  SuiteCall of_suite() const;
};

// Evaluates the model with the attention that it has (use_attention() changes it); after a suite it
// has another one. `name`: as messages call it.
using EvaluationResult = std::variant<TextResult, TaskResult, SuiteResult>;
EvaluationResult evaluate(const std::string& name, nn::LoadedModel& model,
                          const data::Tokenizer& tokenizer, const Evaluation& what,
                          const Messages& messages);
data::Json to_json(const EvaluationResult& result);

}  // namespace brine::distill
