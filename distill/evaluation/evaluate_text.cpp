// A model's perplexity on text by a named protocol, with its mask recall next to a teacher.
#include "distill/evaluation/evaluate_text.h"

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>

#include "autograd/compute_type.h"
#include "data/io/json.h"
#include "distill/evaluation/keys_read.h"
#include "distill/evaluation/recall_observer.h"
#include "distill/evaluation/tasks/task_report.h"
#include "distill/inputs/texts.h"

namespace brine::distill {
namespace {

// The measurement, and how the text was joined and cut, as an object and in words.
struct Scored {
  Perplexity perplexity;
  TextCut cut;
  std::string words;
  std::function<void(const EvaluateCall&)> again;  // another evaluation of the same windows
};

int64_t scored_windows(const TextEvaluation& e, int64_t all) {
  return e.max_windows ? std::min(e.max_windows, all) : all;
}

std::string cut_in_words(const WindowSource& windows, const TextEvaluation& e, int64_t tokens) {
  return join("non-overlapping windows of ", windows.window(), " tokens, each by itself, no BOS, ",
              "the last partial window dropped, targets from position ",
              std::max<int64_t>(e.loss_from, 1), ", ", tokens, " predicted tokens");
}

Tensor first_of(std::span<const int32_t> tokens, int64_t window) {
  tokens = tokens.first(std::min<size_t>(tokens.size(), size_t(window)));
  return Tensor::from(tokens, {1, int64_t(tokens.size())});
}

Scored score_windows(const nn::LoadedModel& m, const data::Tokenizer& tokenizer,
                     const TextEvaluation& e, const EvaluateCall& call, const Messages& messages) {
  check(e.stride == 0, "eval: --stride is for the protocol stride, not windows");
  const int64_t window = window_of(e.sequence_length, m.config, "eval");
  data::TokenCorpus corpus = load_texts(e.data, tokenizer, window, messages);
  Scored out;
  out.cut = {.name = data::name_of(e.protocol, kProtocolNames),
             .files = e.data,
             .joining = "the tokens of the files, one after another",
             .bos = "no BOS",
             .window = window,
             .stride = window,
             .windows = corpus.windows(),
             .scored_windows = scored_windows(e, corpus.windows()),
             .tokens = int64_t(corpus.tokens->size()),
             .dropped_tokens = corpus.dropped()};
  const std::shared_ptr<WindowSource> windows = windows_of(std::move(corpus), window, 0);
  calibrate_on(m, windows->in_order(0, 1).ids, messages);
  out.perplexity = evaluate(*m.model, *windows, call);
  warn_if_all_kept(m.config, call.options.k, window, messages);
  out.cut.predicted_tokens = out.perplexity.tokens;
  out.words = cut_in_words(*windows, e, out.perplexity.tokens);
  out.again = [&m, windows](const EvaluateCall& other) { evaluate(*m.model, *windows, other); };
  return out;
}

Scored score_protocol(const nn::LoadedModel& m, const data::Tokenizer& tokenizer,
                      const TextEvaluation& e, const EvaluateCall& call, const Messages& messages) {
  check(e.loss_from == 0, "eval: the protocol ", data::name_of(e.protocol, kProtocolNames),
        " does not accept loss_from");
  const auto chosen =
      std::make_shared<Protocol>(make_protocol({.name = e.protocol,
                                                .files = e.data,
                                                .window = e.sequence_length,
                                                .stride = e.stride,
                                                .positions = m.config.shape().max_positions},
                                               tokenizer));
  if (!chosen->warning.empty()) messages.warning("eval: ", chosen->warning);
  Scored out;
  calibrate_on(m, first_of(chosen->tokens, chosen->window), messages);
  out.perplexity = score(*chosen, *m.model, call);
  warn_if_all_kept(m.config, call.options.k, chosen->window, messages);
  const int64_t scored = scored_windows(e, chosen->windows());
  out.cut = cut_of(*chosen, scored, out.perplexity.tokens);
  out.words = describe(*chosen, scored, out.perplexity.tokens);
  out.again = [&m, chosen](const EvaluateCall& other) { score(*chosen, *m.model, other); };
  return out;
}

void warn(const Messages& messages, const MaskHealth& health) {
  const std::string warning = degenerate_warning(health);
  if (!warning.empty()) messages.warning("eval: ", warning);
}

}  // namespace

TextResult evaluate_text(const std::string& name, const nn::LoadedModel& m,
                         const data::Tokenizer& tokenizer, const TextEvaluation& e,
                         const Messages& messages) {
  check(!e.data.empty(), "eval: --data is needed");
  check(e.teacher.empty() || e.protocol != ProtocolName::stride,
        "eval: mask recall needs adjacent windows, not the protocol stride");
  check(!e.cache || e.teacher.empty(),
        "eval: --cache reads text through a cache; without --teacher");
  compare_teacher(e.teacher, tokenizer, messages);
  EvaluateCall call{.batch_size = e.batch_size,
                    .max_windows = e.max_windows,
                    .loss_from = e.loss_from,
                    .options = e.options(),
                    .reading = e.reading(),
                    .ranks = e.ranks};
  const nn::AttentionTraits traits = m.model->attention_traits();
  std::unique_ptr<RecallObserver> recall;
  if (!e.teacher.empty()) {
    recall = RecallObserver::make(e.teacher, m, {.k = e.k});
    call.observer = recall.get();
    call.before_batch = [&](const Batch& batch) { recall->begin(batch); };
    call.measures = {recall.get()};
  }
  KeysRead read;
  // Whose k counts whole blocks, has a mask of blocks, which is counted on the way.
  const bool counts = !recall && !e.cache && traits.k_step > 1 && e.path == AttentionPath::sparse;
  if (counts) {
    call.observer = &read;
    call.measures = {&read};
  }
  const Scored scored = e.protocol == ProtocolName::windows
                            ? score_windows(m, tokenizer, e, call, messages)
                            : score_protocol(m, tokenizer, e, call, messages);
  TextResult out{.model = name,
                 .attention = m.config.attention,
                 .k = e.k ? e.k : kept_keys_of(m.config, 0),
                 .compute = compute_type(),
                 .perplexity = scored.perplexity,
                 .protocol = scored.words,
                 .cut = scored.cut};
  if (traits.query_skip) out.query_skip = e.query_skip;
  if (traits.sparse) out.path = data::name_of(e.path, kAttentionPaths);
  if (recall) out.mask_recall = recall->rows();
  if (recall) {
    out.keys_read = out.mask_recall.back().keys_read;
  } else if (nn::is_full_attention(m.config.attention)) {
    out.keys_read = keys_of_all(m.config.shape(), scored.cut.window);
  } else if (traits.sparse && !e.cache) {
    const nn::RuntimeOptions options{.k = e.k, .query_skip = e.query_skip};
    if (!counts)
      scored.again({.batch_size = 1, .max_windows = 1, .options = options, .observer = &read});
    if (read.mean() > 0) out.keys_read = read.mean();
  }
  out.peak = device_peak();
  if (learns_mask(*m.model) && !e.cache) {
    const MaskHealth health = recall ? mask_health(recall->layers())
                                     : health_of_start(m.config, e.options(), scored.again);
    if (!recall) out.mask_health = health;
    warn(messages, health);
  }
  messages.detail("eval: ", peak_memory());
  return out;
}

data::Json to_json(const TextResult& r) {
  data::Json out = {{"model", r.model},
                    {"attention", r.attention},
                    {"k", or_null(r.k)},
                    {"query_skip", or_null(r.query_skip)},
                    {"compute", name_of(r.compute)},
                    {"path", r.path.empty() ? data::Json() : data::Json(r.path)},
                    {"perplexity", r.perplexity.value()},
                    {"nll", r.perplexity.nll},
                    {"tokens", r.perplexity.tokens},
                    {"protocol", r.protocol},
                    {"cut", to_json(r.cut)}};
  if (r.keys_read) out["keys_read"] = *r.keys_read;
  if (!r.mask_recall.empty()) out["mask_recall"] = to_json(r.mask_recall);
  add_json(out, r.peak);
  if (r.mask_health) out["mask_health"] = to_json(*r.mask_health);
  return out;
}

}  // namespace brine::distill
