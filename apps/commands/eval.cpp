// brine eval: perplexity with its protocol, or the scores of a task; with a teacher the mask
// recall.
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/cli/terminal.h"
#include "apps/cli/unused_flags.h"
#include "data/io/json.h"
#include "distill/evaluation/evaluate_text.h"
#include "distill/evaluation/task_report.h"

namespace brine {
namespace {

struct Eval {
  std::string model, attention, task, split;
  distill::TextEvaluation text;
  bool json = false;

  void describe(data::Schema& s) {
    s.field("model", model, "Model directory or run", {.required = true});
    s.field("data", text.data, "Text files or token shards, or the directory of the task");
    s.field("task", task, "Score the answers to a task instead of text: " + distill::known_tasks());
    s.field("split", split,
            "Split of the task, or a TSV file in its folder; none: every dev split");
    s.choice(
        "protocol", text.protocol, distill::kProtocolNames,
        "How the text is joined and cut: windows of the plain text, or as SEA's paper, GPTQ or "
        "Hugging Face's page on perplexity do (docs/evaluation.md)");
    s.field("teacher", text.teacher, "Teacher whose attention the mask should cover: mask recall");
    s.field("attention", attention,
            "Evaluate under another attention method without training (recent: a sliding window)");
    s.field("k", text.k, "Kept keys per query and head; 0 = as trained", {.min = 0});
    s.field("query_skip", text.query_skip, "The estimator runs on every f-th token", {.min = 1});
    s.choice("path", text.path, distill::kAttentionPaths,
             "dense: the T x T reference of a sparse method");
    s.field("sequence_length", text.sequence_length,
            "Tokens of a window; 0 = the protocol's own, else the model's positions",
            {.min = 0, .alias = "window"});
    s.field("stride", text.stride, "Protocol stride: tokens between windows; 0 = half a window",
            {.min = 0});
    s.field("batch_size", text.batch_size, "Windows or texts at once", {.min = 1});
    s.field("max_windows", text.max_windows,
            "Only the first windows, or evenly spaced texts of the split; 0 = all", {.min = 0});
    s.field("loss_from", text.loss_from, "Only targets from this position of a window on",
            {.min = 0});
    s.field("copies", text.copies,
            "A window repeats sequence_length / copies tokens of the text so often", {.min = 1});
    s.field("json", json, "Print one JSON object");
  }

  int run(const RunContext& context) {
    if (task.empty()) {
      refuse_unused(context, {"split"}, "without --task");
    } else {
      refuse_unused(context, {"protocol", "stride", "loss_from", "copies"}, "with --task");
    }
    nn::LoadedModel m = distill::load_model(model, log_messages());
    const std::unique_ptr<data::Tokenizer> tokenizer = distill::tokenizer_of(m, log_messages());
    distill::use_attention(m, attention);
    refuse_unused_options(context, *m.model);
    const data::Json out =
        task.empty() ? distill::evaluate_text(model, m, *tokenizer, text, log_messages())
                     : distill::evaluate_task(m, *tokenizer, task_evaluation(), log_messages());
    if (json) {
      std::cout << json_text(out) << std::endl;
    } else if (task.empty()) {
      distill::print_text_evaluation(out);
    } else {
      distill::print_task_evaluation(out);
    }
    return 0;
  }

  distill::TaskEvaluation task_evaluation() const {
    return {
        .task = task,
        .data = text.data,
        .split = split,
        .teacher = text.teacher,
        .max_tokens = text.sequence_length,
        .answer = {
            .batch_size = text.batch_size, .max_texts = text.max_windows, .dials = text.dials()}};
  }
};

const RegisterSubcommand<Eval> registration("eval", "Perplexity and mask recall of a model");

}  // namespace
}  // namespace brine
