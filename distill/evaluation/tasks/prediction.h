// What a prediction is: labels for lines of text.
#pragma once

#include <istream>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "distill/evaluation/tasks/evaluate_task.h"
#include "distill/log/messages.h"
#include "nn/io/model_io.h"

namespace brine::distill {

// A classifier's labels for lines of text, or of pairs of texts separated by a tab.

struct TextLine {
  std::string first;
  std::optional<std::string> second = {};
};

// The lines of a text, which end with LF or CRLF. A line with a tab is a pair, unless `pairs` says
// that the model was made for single texts; if it was made for pairs, every line must be one. No
// text may be empty. Errors start with NAME:LINE.
std::vector<TextLine> text_lines(const std::string& name, std::string_view text,
                                 std::optional<bool> pairs);

struct LineLabel {
  std::string name;  // of the likeliest class; empty for a regression of one label
  // Its probability, by softmax or, if each class may be right or there is only one, by the
  // logistic function; or the score of a regression, of several the largest.
  double value = 0;
  // Every class with its value, the largest first; empty for a regression of one label.
  std::vector<std::pair<std::string, double>> all = {};
  bool cut = false;  // the text did not fit
};
// One for each line; `max_tokens` 0 = the model's positions.
std::vector<LineLabel> label_lines(const nn::LoadedModel& model, const data::Tokenizer& tokenizer,
                                   const std::vector<TextLine>& lines, int64_t max_tokens,
                                   const TaskCall& call);

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
             std::istream& input, std::ostream& labels, const Messages& messages = {});

}  // namespace brine::distill
