// What a prediction is: labels for lines of text.
#pragma once

#include <istream>
#include <ostream>
#include <string>
#include <vector>

#include "distill/evaluation/tasks/label_lines.h"
#include "nn/io/model_io.h"

namespace brine::distill {

struct Prediction {
  std::vector<std::string> texts = {};  // files of lines; none: the input stream
  std::string fields = {};              // of files that are tables; empty: lines, of .jsonl "text"
  bool json = false;
  int64_t max_tokens = 0;  // 0 = the model's positions
  TaskCall answer = {};

  void describe(data::Schema& s);
};

// Writes a line for each text to `labels`: the likeliest class and its probability, then all others
// in descending order, with tabs between, or the score of a regression; with `json` an object with
// "text" (and "second"), "label" and "probabilities". Text comes from `input` where no file or "-"
// is named.
void predict(nn::LoadedModel& model, const data::Tokenizer& tokenizer, const Prediction& what,
             std::istream& input, std::ostream& labels);

}  // namespace brine::distill
