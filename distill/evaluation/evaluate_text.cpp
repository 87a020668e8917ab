// A model's perplexity on text by a named protocol, with its mask recall next to a teacher.
#include "distill/evaluation/evaluate_text.h"

#include <cstdio>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "autograd/compute_type.h"
#include "data/config/schema_text.h"
#include "distill/evaluation/health/kld.h"
#include "distill/evaluation/health/mask_health.h"
#include "distill/evaluation/recall_observer.h"
#include "distill/evaluation/tasks/task_report.h"
#include "distill/inputs/texts.h"
#include "distill/log/device_memory.h"

namespace brine::distill {
namespace {

// The measurement, and how the text was joined and cut, as an object and in words.
struct Scored {
  Perplexity perplexity;
  data::Json cut;
  std::string words;
  std::function<void(const EvaluateCall&)> again;  // another evaluation of the same windows
};

int64_t scored_windows(const TextEvaluation& e, int64_t all) {
  return e.max_windows ? std::min(e.max_windows, all) : all;
}

std::string cut_in_words(const WindowSource& windows, const TextEvaluation& e, int64_t tokens) {
  std::string repeated = e.copies > 1 ? join(" (", e.copies, " copies of the same text)") : "";
  return join("non-overlapping windows of ", windows.window(), " tokens", repeated,
              ", each by itself, no BOS, ",
              "the last partial window dropped, targets from position ",
              std::max<int64_t>(e.loss_from, 1), ", ", tokens, " predicted tokens");
}

Scored score_windows(const nn::LoadedModel& m, const data::Tokenizer& tokenizer,
                     const TextEvaluation& e, const EvaluateCall& call, const Messages& messages) {
  check(e.stride == 0, "eval: --stride is for the protocol stride, not windows");
  const int64_t window = window_of(e.sequence_length, m.config, "eval");
  data::TokenCorpus corpus = load_texts(e.data, tokenizer, window, e.copies, messages);
  Scored out;
  out.cut = {{"name", data::name_of(e.protocol, kProtocolNames)},
             {"split", nullptr},
             {"files", e.data},
             {"joining", "the tokens of the files, one after another"},
             {"bos", "no BOS"},
             {"window", window},
             {"stride", window},
             {"windows", corpus.windows()},
             {"scored_windows", scored_windows(e, corpus.windows())},
             {"tokens", corpus.tokens->size()},
             {"dropped_tokens", corpus.dropped()}};
  const std::shared_ptr<WindowSource> windows = windows_of(std::move(corpus), window, 0, e.copies);
  out.perplexity = evaluate(*m.model, *windows, call);
  out.cut["predicted_tokens"] = out.perplexity.tokens;
  out.words = cut_in_words(*windows, e, out.perplexity.tokens);
  out.again = [&m, windows](const EvaluateCall& other) { evaluate(*m.model, *windows, other); };
  return out;
}

Scored score_protocol(const nn::LoadedModel& m, const data::Tokenizer& tokenizer,
                      const TextEvaluation& e, const EvaluateCall& call, const Messages& messages) {
  check(e.copies == 1 && e.loss_from == 0, "eval: the protocol ",
        data::name_of(e.protocol, kProtocolNames), " accepts neither copies nor loss_from");
  const auto chosen =
      std::make_shared<Protocol>(make_protocol({.name = e.protocol,
                                                .files = e.data,
                                                .window = e.sequence_length,
                                                .stride = e.stride,
                                                .positions = m.config.shape().max_positions},
                                               tokenizer));
  if (!chosen->warning.empty()) messages.warning("eval: ", chosen->warning);
  Scored out;
  out.perplexity = score(*chosen, *m.model, call);
  const int64_t scored = scored_windows(e, chosen->windows());
  out.cut = to_json(*chosen, scored, out.perplexity.tokens);
  out.words = describe(*chosen, scored, out.perplexity.tokens);
  out.again = [&m, chosen](const EvaluateCall& other) { score(*chosen, *m.model, other); };
  return out;
}

// The model that the logits are compared with: the teacher, or the model's weights under full
// attention.
std::shared_ptr<nn::Model> compared_with(const nn::LoadedModel& m, const std::string& teacher) {
  if (!teacher.empty() && teacher != kSelf) return nn::load_model(teacher).model;
  nn::ModelConfig config = m.config;
  config.attention = "flash";
  return nn::make_student(config, *m.model, 0);
}

// Mask health of the first window, which every evaluation of a learned mask reports; of all ranks.
MaskHealth health_of_first(const nn::LoadedModel& m, const Scored& scored,
                           const TextEvaluation& e) {
  RecallObserver observer(m.config, {.k = e.k});
  scored.again({.batch_size = 1,
                .max_windows = 1,
                .options = e.options(),
                .observer = &observer,
                .before_batch = [&](const Batch& batch) { observer.begin(batch); }});
  return mask_health(observer.layers());
}

data::Json json_of(const MaskHealth& health) {
  data::Json out = {{"reference", "own dense attention, first window"}, {"rows", health.rows}};
  for (const auto& [name, value] : log_values(health)) out[name] = value;
  out["sinks_recent"] = health.sinks_recent;
  out["kept_keys"] = health.kept;
  out["tile_keys"] = health.tile_kept;
  return out;
}

void warn(const Messages& messages, const MaskHealth& health) {
  const std::string warning = degenerate_warning(health);
  if (!warning.empty()) messages.warning("eval: ", warning);
}

}  // namespace

data::Json evaluate_text(const std::string& name, const nn::LoadedModel& m,
                         const data::Tokenizer& tokenizer, const TextEvaluation& e,
                         const Messages& messages) {
  check(!e.data.empty(), "eval: --data is needed");
  check(e.teacher.empty() || e.protocol != ProtocolName::stride,
        "eval: mask recall needs adjacent windows, not the protocol stride");
  compare_teacher(e.teacher, tokenizer, messages);
  EvaluateCall call{.batch_size = e.batch_size,
                    .max_windows = e.max_windows,
                    .loss_from = e.loss_from,
                    .options = e.options(),
                    .ranks = e.ranks};
  const nn::AttentionTraits traits = m.model->attention_traits();
  std::unique_ptr<RecallObserver> recall;
  if (!e.teacher.empty() && (traits.sparse || !e.kld)) {
    recall = RecallObserver::make(e.teacher, m, {.k = e.k, .from = e.recall_from});
    call.observer = recall.get();
    call.before_batch = [&](const Batch& batch) { recall->begin(batch); };
    call.measures = {recall.get()};
  }
  std::unique_ptr<LogitComparison> logits;
  if (e.kld) logits = std::make_unique<LogitComparison>(compared_with(m, e.teacher));
  call.logits = logits.get();
  const Scored scored = e.protocol == ProtocolName::windows
                            ? score_windows(m, tokenizer, e, call, messages)
                            : score_protocol(m, tokenizer, e, call, messages);
  const char* path = data::name_of(e.path, kAttentionPaths);
  data::Json out = {{"model", name},
                    {"attention", m.config.attention},
                    {"k", e.k ? data::Json(e.k) : kept_keys_of(m.config, 0)},
                    {"query_skip", traits.query_skip ? data::Json(e.query_skip) : data::Json()},
                    {"oversample", oversample_of(m.config, e.oversample)},
                    {"compute", name_of(compute_type())},
                    {"path", traits.sparse ? data::Json(path) : data::Json()},
                    {"perplexity", scored.perplexity.value()},
                    {"nll", scored.perplexity.nll},
                    {"tokens", scored.perplexity.tokens},
                    {"protocol", scored.words},
                    {"cut", scored.cut}};
  if (recall) out["mask_recall"] = recall->table();
  if (logits) out["kld"] = logits->table();
  add_peak_memory(out);
  if (learns_mask(*m.model)) {
    const MaskHealth health =
        recall ? mask_health(recall->layers()) : health_of_first(m, scored, e);
    if (!recall) out["mask_health"] = json_of(health);
    warn(messages, health);
  }
  messages.detail("eval: ", peak_memory());
  return out;
}

namespace {

void print_first_health(const data::Json& health) {
  if (health.at("rows").get<int64_t>() == 0) return;
  char line[160];
  auto value = [&](const char* key) { return health.at(key).get<double>(); };
  std::snprintf(line, sizeof line,
                "mask recall  %.3f, least head %.3f, 10th percentile %.3f, top-1 hit %.3f (%s)\n",
                value("mask_recall"), value("mask_recall_min"), value("mask_recall_p10"),
                value("mask_top1_hit"), health.at("reference").get<std::string>().c_str());
  std::cout << line << kept_line(value("kept_keys"), value("tile_keys"));
}

}  // namespace

void print_text_evaluation(const data::Json& out) {
  std::cout << "perplexity  " << data::show(out.at("perplexity")) << "  ("
            << out.at("protocol").get<std::string>() << ")\n";
  if (out.contains("mask_recall")) print_mask_health(out["mask_recall"]);
  if (out.contains("mask_health")) print_first_health(out["mask_health"]);
  if (out.contains("kld")) print_kld(out["kld"]);
}

void use_attention(nn::LoadedModel& m, const std::string& method,
                   const AttentionSettings& settings) {
  if (method.empty() || (method == m.config.attention && settings.empty())) return;
  nn::attention_method(method);  // throws for an unknown name and lists the known ones
  m.config.attention = method;
  data::Schema keys;
  m.config.method().describe(keys);
  for (const auto& [key, value] : settings) {
    if (value == AttentionSettings::mapped_type(0) && !keys.find(key)) continue;
    check(keys.find(key), "eval: attention '", method, "' has no setting ", key);
    std::visit([&, name = key](const auto& x) { keys.set(name, x); }, value);
  }
  m.model = nn::make_student(m.config, *m.model, 0);
  m.store = std::make_unique<nn::ParameterStore>(*m.model);
}

}  // namespace brine::distill
