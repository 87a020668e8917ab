// What an evaluation is: text by a protocol, a task, or a suite; of the model's attention or
// another.
#include "distill/evaluation/evaluation.h"

#include <nlohmann/json.hpp>

#include "distill/ranks/exchange.h"

namespace brine::distill {

void Evaluation::describe(data::Schema& s) {
  s.field("data", text.data,
          "Text files or token shards, a task's directory, or books for needles");
  s.field("task", task, "Task whose answers to score, instead of text (finetune --help: names)");
  s.field("split", split, "Split of the task, or a TSV file in its folder; none: every dev split");
  s.field("fields", fields, kFieldsHelp);
  s.field("labels", labels, kLabelsHelp);
  s.choice("protocol", text.protocol, kProtocolNames,
           "How text is joined and cut: windows, SEA's, GPTQ's or Hugging Face's way "
           "(docs/evaluation.md)");
  s.field("teacher", text.teacher,
          "Teacher whose attention the mask should cover: mask recall; self: the model's own dense "
          "attention");
  attention.describe(s);
  s.field("k", k, "Kept keys per query and head, of a suite several; 0 or none: as trained",
          {.min = 0});
  s.field("query_skip", text.query_skip, "The estimator runs on every f-th token", {.min = 1});
  s.choice("path", text.path, kAttentionPaths, "dense: the T x T reference of a sparse method");
  s.choice("cache", text.cache, nn::kCaches,
           "Read through a decoding cache of this type, in parts; none: in one pass");
  s.field("prefill", text.prefill, "Tokens of a part that is read through the cache", {.min = 1});
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
  suite.describe(s);
}

TextEvaluation Evaluation::of_text() const {
  check(k.size() <= 1, "eval: ", k.size(), " values of k, wanted one without --suite");
  TextEvaluation out = text;
  if (!k.empty()) out.k = k[0];
  return out;
}

TaskEvaluation Evaluation::of_task() const {
  return {.task = task,
          .data = text.data,
          .split = split,
          .fields = fields,
          .labels = labels,
          .teacher = text.teacher,
          .max_tokens = text.sequence_length,
          .answer = {.batch_size = text.batch_size,
                     .max_texts = text.max_windows,
                     .options = of_text().options(),
                     .ranks = text.ranks}};
}

SuiteCall Evaluation::of_suite() const {
  SuiteCall out{.grid = suite,
                .data = text.data,
                .teacher = text.teacher,
                .k = k,
                .options = text.options(),
                .reading = text.reading(),
                .batch_size = text.batch_size,
                .seed = seed,
                .ranks = text.ranks};
  std::erase(out.k, 0);
  return out;
}

EvaluationResult evaluate(const std::string& name, nn::LoadedModel& model,
                          const data::Tokenizer& tokenizer, const Evaluation& what,
                          const Messages& messages) {
  if (what.text.ranks) compare_models(*what.text.ranks, model);
  if (!what.suite.suite.empty()) {
    SuiteResult out = evaluate_suite(name, model, tokenizer, what.of_suite(), messages);
    if (what.text.cache)
      out.cache = {data::name_of(*what.text.cache, nn::kCaches), what.text.prefill};
    return out;
  }
  if (!what.task.empty()) return evaluate_task(model, tokenizer, what.of_task(), messages);
  refuse_classifier(model, "eval");
  return evaluate_text(name, model, tokenizer, what.of_text(), messages);
}

data::Json to_json(const EvaluationResult& result) {
  return std::visit([](const auto& r) { return to_json(r); }, result);
}

}  // namespace brine::distill
