// A classifier's labels for lines of text, or of pairs of texts separated by a tab.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "distill/evaluation/tasks/evaluate_task.h"
#include "nn/io/model_io.h"

namespace brine::distill {

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
};
// One for each line; `max_tokens` 0 = the model's positions.
std::vector<LineLabel> label_lines(const nn::LoadedModel& model, const data::Tokenizer& tokenizer,
                                   const std::vector<TextLine>& lines, int64_t max_tokens,
                                   const TaskCall& call);

}  // namespace brine::distill
