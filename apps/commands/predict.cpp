// brine predict: labels lines of text, or writes the prediction files of a task.
#include <cstdio>
#include <iostream>
#include <iterator>

#include "apps/shared/task_eval.h"
#include "data/corpus/corpus.h"
#include "data/io/utf8.h"

namespace brine {
namespace {

struct Predict {
  std::string model, out;
  std::vector<std::string> texts;
  TaskEvaluation call;

  void describe(data::Schema& s) {
    s.field("model", model, "Directory or run of a model with a classification head",
            {.required = true});
    s.field("texts", texts,
            "Files whose lines are labelled, a pair of texts with a tab between; none: stdin",
            {.positional = true});
    s.field("task", call.task, "Write prediction files for this task instead: " + known_tasks());
    s.field("data", call.data, "Directory of the task");
    s.field("split", call.split, "Split of the task; none: every test split");
    s.field("out", out, "Directory of the prediction files");
    s.field("sequence_length", call.max_tokens, "Tokens of the longest text; 0 = the model's",
            {.min = 0});
    s.field("batch_size", call.answer.batch_size, "Texts at once", {.min = 1});
    s.field("k", call.answer.dials.k, "Kept keys of a sparse attention; 0 = as trained",
            {.min = 0});
  }

  int run(const RunContext& context);
};

// A text or a pair for each line of the files. Lines end with LF or CRLF.
struct Lines {
  bool pairs = false;
  std::vector<data::TaskExample> rows;

  void add_text(const std::string& name, std::string_view text) {
    int64_t number = 0;
    while (!text.empty()) {
      size_t end = std::min(text.find('\n'), text.size());
      std::string_view line = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      if (line.ends_with('\r')) line.remove_suffix(1);
      add_line(join(name, ":", ++number), line);
    }
  }
  void add_line(const std::string& place, std::string_view line) {
    if (!pairs) {
      rows.push_back({.first = std::string(line)});
      return;
    }
    size_t tab = line.find('\t');
    check(tab != std::string_view::npos && line.find('\t', tab + 1) == std::string_view::npos,
          place, ": the model wants a pair of texts with one tab between");
    rows.push_back(
        {.first = std::string(line.substr(0, tab)), .second = std::string(line.substr(tab + 1))});
  }
};

std::string read_stdin() {
  std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  size_t bad = data::find_invalid_utf8(text);
  check(bad == data::kValidUtf8, "stdin: not UTF-8 at byte offset ", bad);
  return text;
}

// The known task that the head was made for, if any.
const data::Task* task_of(const nn::ModelConfig& config) {
  for (const data::Task& task : data::tasks()) {
    if (task.name == config.family().class_head().task) return &task;
  }
  return nullptr;
}

int Predict::run(const RunContext& context) {
  nn::LoadedModel m = nn::load_model(model);
  warn_of(m);
  refuse_idle_dials(context, *m.model);
  check(m.model->labels() > 0, "predict: ", m.directory, " has no classification head");
  std::unique_ptr<data::Tokenizer> tokenizer = tokenizer_of(m);
  if (!call.task.empty()) {
    check(texts.empty(), "predict: lines of text or a task, not both");
    check(!out.empty(), "predict: --out is needed with --task");
    return predict_task(m, *tokenizer, call, out);
  }
  check(out.empty() && call.data.empty() && call.split.empty(),
        "predict: --out, --data and --split are for a --task");
  const data::Task* made_for = task_of(m.config);
  Lines lines{.pairs = made_for && made_for->pairs(), .rows = {}};
  for (const std::string& file : texts) lines.add_text(file, data::read_text(file));
  if (texts.empty()) lines.add_text("stdin", read_stdin());
  if (lines.rows.empty()) return 0;

  std::vector<std::string> names = m.config.family().class_head().names;
  int64_t labels = m.model->labels();
  bool regression = labels == 1;
  for (int64_t i = int64_t(names.size()); i < labels && !regression; ++i) {
    names.push_back(join("LABEL_", i));
  }
  data::Task any{.name = "lines",
                 .about = {},
                 .first = "text",
                 .second = lines.pairs ? "text" : "",
                 .labels = regression ? std::vector<std::string>{} : names,
                 .metrics = {regression ? data::Metric::pearson : data::Metric::accuracy},
                 .splits = {}};
  int64_t most = call.max_tokens ? call.max_tokens : m.config.shape().max_positions;
  check(most <= m.config.shape().max_positions, "predict: texts of ", most,
        " tokens are longer than the model's ", m.config.shape().max_positions, " positions");
  data::TaskExamples examples{
      .labels = any.labels, .rows = std::move(lines.rows), .labelled = false};
  distill::TaskSource source(
      std::make_shared<data::TaskTokens>(data::tokenize_task(any, examples, *tokenizer, most)), 0);
  distill::TaskAnswers answers = distill::answer(*m.model, source, call.answer);
  for (size_t i = 0; i < answers.predictions.size(); ++i) {
    char number[32];
    std::snprintf(number, sizeof number, "%.4f",
                  regression ? answers.predictions[i] : answers.probabilities[i]);
    if (!regression) std::cout << names[size_t(answers.predictions[i])] << '\t';
    std::cout << number << '\n';
  }
  return 0;
}

const RegisterSubcommand<Predict> registration(
    "predict", "Label lines of text, or write prediction files for GLUE");

}  // namespace
}  // namespace brine
