// brine eval: perplexity with its protocol, and with a teacher the mask recall.
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/cli/terminal.h"
#include "apps/shared/device_memory.h"
#include "apps/shared/task_eval.h"
#include "apps/shared/training.h"
#include "autograd/compute_type.h"
#include "data/io/json.h"
#include "distill/evaluation/evaluate.h"
#include "distill/evaluation/protocol.h"
#include "distill/evaluation/recall_observer.h"
#include "nn/io/model_io.h"

namespace brine {
namespace {

struct Eval {
  std::string model, teacher, path = "sparse", attention, task, split, protocol = "windows";
  std::vector<std::string> data;
  int64_t k = 0, query_skip = 1, sequence_length = 0, batch_size = 8, max_windows = 0,
          loss_from = 0, copies = 1, stride = 0;
  bool json = false;

  void describe(data::Schema& s) {
    s.field("model", model, "Model directory or run", {.required = true});
    s.field("data", data, "Text files or token shards, or the directory of the task");
    s.field("task", task, "Score the answers to a task instead of text: " + known_tasks());
    s.field("split", split, "Split of the task, or a TSV file of its own; none: every dev split");
    s.choice(
        "protocol", protocol, distill::protocol_names(),
        "How the text is joined and cut: windows of the plain text, or as SEA's paper, GPTQ or "
        "Hugging Face's page on perplexity do (docs/evaluation.md)");
    s.field("teacher", teacher, "Teacher whose attention the mask should cover: mask recall");
    s.field("attention", attention,
            "Evaluate under another attention method without training (recent: a sliding window)");
    s.field("k", k, "Kept keys per query and head; 0 = as trained", {.min = 0});
    s.field("query_skip", query_skip, "The estimator runs on every f-th token", {.min = 1});
    s.choice("path", path, {"sparse", "dense"}, "dense: the T x T reference of a sparse method");
    s.field("sequence_length", sequence_length,
            "Tokens of a window; 0 = the protocol's own, else the model's positions",
            {.min = 0, .alias = "window"});
    s.field("stride", stride, "Protocol stride: tokens between windows; 0 = half a window",
            {.min = 0});
    s.field("batch_size", batch_size, "Windows or texts at once", {.min = 1});
    s.field("max_windows", max_windows,
            "Only the first windows, or texts that lie evenly in the split; 0 = all", {.min = 0});
    s.field("loss_from", loss_from, "Only targets from this position of a window on", {.min = 0});
    s.field("copies", copies,
            "A window repeats sequence_length / copies tokens of the text so often", {.min = 1});
    s.field("json", json, "Print one JSON object");
  }

  int64_t scored_windows(int64_t all) const {
    return max_windows ? std::min(max_windows, all) : all;
  }
  int run(const RunContext& context);
  void run_text(const nn::LoadedModel& m, const data::Tokenizer& tokenizer);

  struct Scored {
    distill::Perplexity perplexity;
    data::Json cut;  // how the text was joined and cut; the same in words
    std::string words;
  };
  Scored score_windows(const nn::LoadedModel& m, const data::Tokenizer& tokenizer,
                       const distill::EvaluateCall& call) const;
  Scored score_protocol(const nn::LoadedModel& m, const data::Tokenizer& tokenizer,
                        const distill::EvaluateCall& call) const;
};

std::string cut_in_words(const distill::WindowSource& windows, const Eval& e, int64_t tokens) {
  std::string repeated = e.copies > 1 ? join(" (", e.copies, " copies of the same text)") : "";
  return join("non-overlapping windows of ", windows.window(), " tokens", repeated,
              ", each by itself, no BOS, ",
              "the last partial window dropped, targets from position ",
              std::max<int64_t>(e.loss_from, 1), ", ", tokens, " predicted tokens");
}

// The k of the model's own configuration; null when it has none.
data::Json trained_k(const nn::ModelConfig& config) {
  data::Schema keys;
  config.method().describe(keys);
  data::Json settings = keys.to_json();
  return settings.contains("k") ? settings["k"] : data::Json();
}

void print(const Eval& e, const data::Json& out) {
  if (e.json) {
    std::cout << json_text(out) << std::endl;
    return;
  }
  std::cout << "perplexity  " << out["perplexity"] << "  (" << out["protocol"].get<std::string>()
            << ")\n";
  if (out.contains("mask_recall")) distill::print_recall(out["mask_recall"]);
}

int Eval::run(const RunContext& context) {
  if (task.empty()) {
    refuse_idle(context, {"split"}, "without --task");
  } else {
    refuse_idle(context, {"protocol", "stride", "loss_from", "copies"}, "with --task");
  }
  nn::LoadedModel m = nn::load_model(model);
  warn_of(m);
  std::unique_ptr<data::Tokenizer> tokenizer = tokenizer_of(m);
  if (!attention.empty() && attention != m.config.attention) {
    nn::attention_method(attention);  // names the known ones when it is not
    m.config.attention = attention;
    m.model = nn::make_student(m.config, *m.model, 0);
    m.store = std::make_unique<nn::ParameterStore>(*m.model);
  }
  refuse_idle_dials(context, *m.model);
  if (!task.empty()) {
    return eval_task(
        m, *tokenizer,
        {.task = task,
         .data = data,
         .split = split,
         .teacher = teacher,
         .max_tokens = sequence_length,
         .json = json,
         .answer = {.batch_size = batch_size,
                    .max_texts = max_windows,
                    .dials = {.k = k, .query_skip = query_skip, .dense_path = path == "dense"}}});
  }
  run_text(m, *tokenizer);
  return 0;
}

Eval::Scored Eval::score_windows(const nn::LoadedModel& m, const data::Tokenizer& tokenizer,
                                 const distill::EvaluateCall& call) const {
  check(stride == 0, "eval: --stride is for the protocol stride, not windows");
  const int64_t positions = m.config.shape().max_positions;
  const int64_t window = sequence_length ? sequence_length : positions;
  check(window <= positions, "eval: sequence_length ", window, " is longer than the model's ",
        positions, " positions");
  data::TokenCorpus corpus = load_texts(data, tokenizer, window, copies);
  Scored out;
  out.cut = {{"name", protocol},
             {"split", nullptr},
             {"files", data},
             {"joining", "the tokens of the files, one after another"},
             {"bos", "no BOS"},
             {"window", window},
             {"stride", window},
             {"windows", corpus.windows()},
             {"scored_windows", scored_windows(corpus.windows())},
             {"tokens", corpus.tokens->size()},
             {"dropped_tokens", corpus.dropped()}};
  std::unique_ptr<distill::WindowSource> windows = windows_of(std::move(corpus), window, 0, copies);
  out.perplexity = distill::evaluate(*m.model, *windows, call);
  out.cut["predicted_tokens"] = out.perplexity.tokens;
  out.words = cut_in_words(*windows, *this, out.perplexity.tokens);
  return out;
}

Eval::Scored Eval::score_protocol(const nn::LoadedModel& m, const data::Tokenizer& tokenizer,
                                  const distill::EvaluateCall& call) const {
  check(copies == 1 && loss_from == 0, "eval: the protocol ", protocol,
        " takes no copies and no loss_from");
  const distill::Protocol chosen =
      distill::make_protocol({.name = protocol,
                              .files = data,
                              .window = sequence_length,
                              .stride = stride,
                              .positions = m.config.shape().max_positions},
                             tokenizer);
  Scored out;
  out.perplexity = score(chosen, *m.model, call);
  const int64_t scored = scored_windows(chosen.windows());
  out.cut = distill::to_json(chosen, scored, out.perplexity.tokens);
  out.words = distill::describe(chosen, scored, out.perplexity.tokens);
  return out;
}

void Eval::run_text(const nn::LoadedModel& m, const data::Tokenizer& tokenizer) {
  check(!data.empty(), "eval: --data is needed");
  check(teacher.empty() || protocol != "stride",
        "eval: mask recall needs windows side by side, not the protocol stride");
  distill::EvaluateCall call{
      .batch_size = batch_size,
      .max_windows = max_windows,
      .loss_from = loss_from,
      .dials = {.k = k, .query_skip = query_skip, .dense_path = path == "dense"}};
  std::unique_ptr<distill::RecallObserver> recall;
  if (!teacher.empty()) {
    recall = std::make_unique<distill::RecallObserver>(nn::load_model(teacher), m, k);
    call.observer = recall.get();
    call.before_batch = [&](const distill::Batch& batch) { recall->begin(batch); };
  }
  const Scored scored = protocol == "windows" ? score_windows(m, tokenizer, call)
                                              : score_protocol(m, tokenizer, call);
  const bool sparse = m.model->attention_traits().sparse;
  const bool skips = m.model->attention_traits().query_skip;
  data::Json out = {{"model", model},
                    {"attention", m.config.attention},
                    {"k", k ? data::Json(k) : trained_k(m.config)},
                    {"query_skip", skips ? data::Json(query_skip) : data::Json()},
                    {"compute", name_of(compute_type())},
                    {"path", sparse ? data::Json(path) : data::Json()},
                    {"perplexity", scored.perplexity.value()},
                    {"nll", scored.perplexity.nll},
                    {"tokens", scored.perplexity.tokens},
                    {"protocol", scored.words},
                    {"cut", scored.cut}};
  if (recall) out["mask_recall"] = recall->table();
  add_peak_memory(out);
  log_detail("eval: ", peak_memory());
  print(*this, out);
}

const RegisterSubcommand<Eval> registration("eval", "Perplexity and mask recall of a model");

}  // namespace
}  // namespace brine
