// What a prediction is: labels for lines of text, or the prediction files of a task.
#pragma once

#include <istream>
#include <ostream>
#include <string>
#include <vector>

#include "distill/evaluation/tasks/label_lines.h"
#include "distill/evaluation/tasks/task_report.h"

namespace brine::distill {

struct Prediction {
  std::vector<std::string> texts = {};  // files of lines; none: the input stream
  std::string out = {};                 // directory of a task's prediction files
  TaskEvaluation call = {};             // its task is empty for lines of text

  void describe(data::Schema& s);
  // Throws when settings of lines and of a task are mixed.
  void validate() const;
};

// Writes the prediction files of the task, or a line for each line of text to `labels`: the class
// and its probability with a tab between, or the score of a regression. Text comes from `input`
// where no file is named.
void predict(nn::LoadedModel& model, const data::Tokenizer& tokenizer, const Prediction& what,
             std::istream& input, std::ostream& labels, const Messages& messages);

}  // namespace brine::distill
