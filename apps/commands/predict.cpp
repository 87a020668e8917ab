// brine predict: labels lines of text, or writes the prediction files of a task.
#include <cstdio>
#include <iostream>
#include <iterator>

#include "apps/cli/terminal.h"
#include "apps/cli/unused_flags.h"
#include "data/corpus/corpus.h"
#include "data/io/utf8.h"
#include "distill/evaluation/label_lines.h"
#include "distill/evaluation/task_report.h"

namespace brine {
namespace {

std::string read_stdin() {
  std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  const size_t bad = data::find_invalid_utf8(text);
  check(bad == data::kValidUtf8, "stdin: not UTF-8 at byte offset ", bad);
  return text;
}

struct Predict {
  std::string model, out;
  std::vector<std::string> texts;
  distill::TaskEvaluation call;

  void describe(data::Schema& s) {
    s.field("model", model, "Directory or run of a model with a classification head",
            {.required = true});
    s.field("texts", texts,
            "Files whose lines are labelled, pairs of texts separated by a tab; none: stdin",
            {.positional = true});
    s.field("task", call.task,
            "Write prediction files for this task instead: " + distill::known_tasks());
    s.field("data", call.data, "Directory of the task");
    s.field("split", call.split, "Split of the task; none: every test split");
    s.field("out", out, "Directory of the prediction files");
    s.field("sequence_length", call.max_tokens, "Tokens of the longest text; 0 = the model's",
            {.min = 0});
    s.field("batch_size", call.answer.batch_size, "Texts at once", {.min = 1});
    s.field("k", call.answer.dials.k, "Kept keys of a sparse attention; 0 = as trained",
            {.min = 0});
  }

  int run(const RunContext& context) {
    nn::LoadedModel m = distill::load_model(model, log_messages());
    refuse_unused_options(context, *m.model);
    check(m.model->labels() > 0, "predict: ", m.directory, " has no classification head");
    const std::unique_ptr<data::Tokenizer> tokenizer = distill::tokenizer_of(m, log_messages());
    if (!call.task.empty()) {
      check(texts.empty(), "predict: lines of text or a task, not both");
      check(!out.empty(), "predict: --out is needed with --task");
      distill::predict_task(m, *tokenizer, call, out, log_messages());
      return 0;
    }
    check(out.empty() && call.data.empty() && call.split.empty(),
          "predict: --out, --data and --split are for a --task");
    const bool pairs = distill::wants_pairs(m.config);
    std::vector<distill::TextLine> lines;
    auto add = [&](const std::string& name, const std::string& text) {
      for (distill::TextLine& line : distill::text_lines(name, text, pairs)) {
        lines.push_back(std::move(line));
      }
    };
    for (const std::string& file : texts) add(file, data::read_text(file));
    if (texts.empty()) add("stdin", read_stdin());
    for (const distill::LineLabel& label :
         distill::label_lines(m, *tokenizer, lines, call.max_tokens, call.answer)) {
      if (!label.name.empty()) std::cout << label.name << '\t';
      char number[32];
      std::snprintf(number, sizeof number, "%.4f", label.value);
      std::cout << number << '\n';
    }
    return 0;
  }
};

const RegisterSubcommand<Predict> registration(
    "predict", "Label lines of text, or write prediction files for GLUE");

}  // namespace
}  // namespace brine
