// brine eval: perplexity with its protocol, and with a teacher the mask recall.
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/recall_observer.h"
#include "apps/task_eval.h"
#include "apps/terminal.h"
#include "apps/training.h"
#include "distill/evaluate.h"
#include "distill/model_io.h"
#include "tensor/json.h"

namespace brine {
namespace {

struct Eval {
  std::string model, teacher, path = "sparse", attention, task, split;
  std::vector<std::string> data;
  int64_t k = 0, sequence_length = 0, batch_size = 8, max_windows = 0, loss_from = 0, copies = 1;
  bool json = false;

  void describe(nn::Schema& s) {
    s.field("model", model, "Model directory or run", {.required = true});
    s.field("data", data, "Text files, or the directory of the task");
    s.field("task", task, "Score the answers to a task instead of text: " + known_tasks());
    s.field("split", split, "Split of the task, or a TSV file of its own; none: every dev split");
    s.field("teacher", teacher, "Teacher whose attention the mask should cover: mask recall");
    s.field("attention", attention,
            "Evaluate under another attention method without training (recent: a sliding window)");
    s.field("k", k, "Kept keys per query and head; 0 = as trained", {.min = 0});
    s.choice("path", path, {"sparse", "dense"}, "dense: the T x T reference of a sparse method");
    s.field("sequence_length", sequence_length, "Tokens of a window; 0 = the model's positions",
            {.min = 0});
    s.field("batch_size", batch_size, "Windows or texts at once", {.min = 1});
    s.field("max_windows", max_windows,
            "Only the first windows, or texts that lie evenly in the split; 0 = all", {.min = 0});
    s.field("loss_from", loss_from, "Only targets from this position of a window on", {.min = 0});
    s.field("copies", copies,
            "A window repeats sequence_length / copies tokens of the text so often", {.min = 1});
    s.field("json", json, "Print one JSON object");
  }

  int run(const RunContext& context);
};

std::string protocol(const distill::WindowSource& windows, const Eval& e, int64_t tokens) {
  std::string repeated = e.copies > 1 ? join(" (", e.copies, " copies of the same text)") : "";
  return join("non-overlapping windows of ", windows.window(), " tokens", repeated,
              ", each by itself, no BOS, ",
              "the last partial window dropped, targets from position ",
              std::max<int64_t>(e.loss_from, 1), ", ", tokens, " predicted tokens");
}

// The k of the model's own configuration; null when it has none.
nn::Json trained_k(const nn::ModelConfig& config) {
  nn::Schema keys;
  config.method().describe(keys);
  nn::Json settings = keys.to_json();
  return settings.contains("k") ? settings["k"] : nn::Json();
}

void print(const Eval& e, const nn::Json& out) {
  if (e.json) {
    std::cout << json_text(out) << std::endl;
    return;
  }
  std::cout << "perplexity  " << out["perplexity"] << "  (" << out["protocol"].get<std::string>()
            << ")\n";
  if (out.contains("mask_recall")) print_recall(out["mask_recall"]);
}

int Eval::run(const RunContext& context) {
  distill::LoadedModel m = distill::load_model(model);
  warn_of(m);
  std::unique_ptr<data::Tokenizer> tokenizer = distill::tokenizer_of(m.directory);
  if (!attention.empty() && attention != m.config.attention) {
    nn::attention_method(attention);  // names the known ones when it is not
    m.config.attention = attention;
    m.model = distill::make_student(m.config, *m.model, 0);
    m.store = std::make_unique<nn::ParameterStore>(*m.model);
  }
  refuse_idle_dials(context, *m.model);
  bool sparse = m.model->attention_traits().sparse;
  if (!task.empty()) {
    return eval_task(m, *tokenizer,
                     {.task = task,
                      .data = data,
                      .split = split,
                      .teacher = teacher,
                      .max_tokens = sequence_length,
                      .json = json,
                      .answer = {.batch_size = batch_size,
                                 .max_texts = max_windows,
                                 .dials = {.k = k, .dense_path = path == "dense"}}});
  }
  check(!data.empty(), "eval: --data is needed");
  int64_t positions = m.config.shape().max_positions;
  int64_t window = sequence_length ? sequence_length : positions;
  check(window <= positions, "eval: sequence_length ", window, " is longer than the model's ",
        positions, " positions");
  std::unique_ptr<distill::WindowSource> windows =
      windows_of(load_texts(data, *tokenizer, window, copies), window, 0, copies);
  distill::EvaluateCall call{.batch_size = batch_size,
                             .max_windows = max_windows,
                             .loss_from = loss_from,
                             .dials = {.k = k, .dense_path = path == "dense"}};
  std::unique_ptr<RecallObserver> recall;
  if (!teacher.empty()) {
    recall = std::make_unique<RecallObserver>(distill::load_model(teacher), m, k);
    call.observer = recall.get();
    call.before_batch = [&](const distill::Batch& batch) { recall->begin(batch); };
  }
  distill::Perplexity p = distill::evaluate(*m.model, *windows, call);
  nn::Json out = {{"model", model},
                  {"attention", m.config.attention},
                  {"k", k ? nn::Json(k) : trained_k(m.config)},
                  {"path", sparse ? nn::Json(path) : nn::Json()},
                  {"perplexity", p.value()},
                  {"nll", p.nll},
                  {"tokens", p.tokens},
                  {"protocol", protocol(*windows, *this, p.tokens)}};
  if (recall) out["mask_recall"] = recall->table();
  print(*this, out);
  return 0;
}

const RegisterSubcommand<Eval> registration("eval", "Perplexity and mask recall of a model");

}  // namespace
}  // namespace brine
