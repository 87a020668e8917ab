// What a prediction is: labels for lines of text.
#include "distill/evaluation/tasks/prediction.h"

#include <cstdio>
#include <iterator>

#include "data/corpus/corpus.h"
#include "data/io/utf8.h"

namespace brine::distill {
namespace {

std::string read_all(std::istream& input) {
  std::string text{std::istreambuf_iterator<char>(input), {}};
  const size_t bad = data::find_invalid_utf8(text);
  check(bad == data::kValidUtf8, "stdin: not UTF-8 at byte offset ", bad);
  return std::string(data::without_mark(text));
}

std::vector<TextLine> lines_of(const Prediction& what, bool pairs, std::istream& input) {
  if (what.texts.empty()) return text_lines("stdin", read_all(input), pairs);
  std::vector<TextLine> lines;
  for (const std::string& file : what.texts) {
    for (TextLine& line : text_lines(file, data::read_text(file), pairs)) {
      lines.push_back(std::move(line));
    }
  }
  return lines;
}

}  // namespace

void Prediction::describe(data::Schema& s) {
  s.field("texts", texts,
          "Files whose lines are labelled, pairs of texts separated by a tab; none: stdin",
          {.positional = true});
  s.field("sequence_length", max_tokens, "Tokens of the longest text; 0 = the model's", {.min = 0});
  s.field("batch_size", answer.batch_size, "Texts at once", {.min = 1});
  s.field("k", answer.options.k, "Kept keys of a sparse attention; 0 = as trained", {.min = 0});
}

void predict(nn::LoadedModel& model, const data::Tokenizer& tokenizer, const Prediction& what,
             std::istream& input, std::ostream& labels) {
  check(model.model->labels() > 0, "predict: ", model.directory, " has no classification head");
  const std::vector<TextLine> lines = lines_of(what, wants_pairs(model.config), input);
  for (const LineLabel& label :
       label_lines(model, tokenizer, lines, what.max_tokens, what.answer)) {
    if (!label.name.empty()) labels << label.name << '\t';
    char number[32];
    std::snprintf(number, sizeof number, "%.4f", label.value);
    labels << number << '\n';
  }
}

}  // namespace brine::distill
