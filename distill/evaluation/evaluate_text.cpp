// A model's perplexity on text by a named protocol, with its mask recall next to a teacher.
#include "distill/evaluation/evaluate_text.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>

#include "autograd/compute_type.h"
#include "data/corpus/corpus.h"
#include "data/corpus/token_shards.h"
#include "data/io/json.h"
#include "data/tokenizer/prompt_tokens.h"
#include "distill/evaluation/recall_observer.h"
#include "distill/evaluation/tasks/task_report.h"

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

}  // namespace

TextResult evaluate_text(const std::string& name, const nn::LoadedModel& m,
                         const data::Tokenizer& tokenizer, const TextEvaluation& e,
                         const Messages& messages) {
  check(!e.data.empty(), "eval: --data is needed");
  check(e.teacher.empty() || e.protocol != ProtocolName::stride,
        "eval: mask recall needs adjacent windows, not the protocol stride");
  check(!e.cache || e.teacher.empty(),
        "eval: --cache reads text through a cache; without --teacher");
  check(!e.cache || nn::part_step(*m.model, e.options()) > 0,
        "eval: --cache has no effect on attention '", m.config.attention, "' (query_skip ",
        e.query_skip, "), which reads prompts whole");
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
    recall = RecallObserver::make(e.teacher, m, e.k);
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
  if (e.cache) out.cache = {data::name_of(*e.cache, nn::kCaches), e.prefill};
  if (recall) {
    out.mask_recall = recall->rows();
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
  // A calibrated mask has no parameters, and measuring it takes as long as the evaluation:
  // --teacher measures it.
  if (learns_mask(*m.model) && !e.cache && (recall || !traits.calibrates)) {
    const MaskHealth health = recall ? mask_health(recall->layers())
                                     : health_of_start(m.config, e.options(), scored.again);
    if (!recall) out.mask_health = health;
    const std::string warning = degenerate_warning(health);
    if (!warning.empty()) messages.warning("eval: ", warning);
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
  if (r.cache) {
    out["cache"] = r.cache->first;
    out["prefill"] = r.cache->second;
  }
  if (r.keys_read) out["keys_read"] = *r.keys_read;
  if (!r.mask_recall.empty()) out["mask_recall"] = to_json(r.mask_recall);
  add_json(out, r.peak);
  if (r.mask_health) out["mask_health"] = to_json(*r.mask_health);
  return out;
}

namespace {

constexpr const char* kJoining = "lines joined by two newlines, blank ones as empty texts";

struct Facts {
  ProtocolName name;
  const char* split;
  bool bos;        // adds the tokens that the tokenizer puts in front of a text, once
  int64_t window;  // 0: the model's positions
  bool strided;
};
constexpr Facts kFacts[] = {{ProtocolName::sea, "validation", false, 2048, false},
                            {ProtocolName::gptq, "test", true, 2048, false},
                            {ProtocolName::stride, "test", true, 0, true}};

const Facts& facts_of(ProtocolName name) {
  for (const Facts& facts : kFacts) {
    if (name == facts.name) return facts;
  }
  throw Error("eval: the protocol windows is scored as WindowSource cuts the text");
}

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : " ") + name;
  return out;
}

// Shards can replace text if they contain its joined lines: the same tokens, however the text is
// cut.
std::vector<int32_t> tokens_of(const Protocol& p, const data::Tokenizer& tokenizer) {
  for (const std::string& file : p.files) {
    if (!std::filesystem::is_directory(file)) continue;
    const data::TokenManifest manifest = data::read_token_manifest(file);
    check(manifest.joining == data::Joining::lines, file, ": protocol ", p.name,
          " joins the lines of text files, these shards hold whole documents; brine tokenize "
          "--joining lines makes such that can be used");
    check(p.files.size() == 1, file, ": protocol ", p.name,
          " needs a single directory of shards: the text between two texts is tokenised with "
          "them");
    const data::TokenCorpus corpus = data::load_corpus({file}, tokenizer, 2);
    return corpus.tokens->slice(0, corpus.tokens->size());
  }
  return tokenizer.encode(data::read_joined_lines(p.files));
}

}  // namespace

int64_t Protocol::windows() const {
  const auto size = int64_t(tokens.size());
  return strided ? StridedWindows{window, stride}.count(size) : size / window;
}

int64_t Protocol::dropped() const { return strided ? 0 : int64_t(tokens.size()) % window; }

Protocol make_protocol(const ProtocolRequest& request, const data::Tokenizer& tokenizer) {
  const Facts& facts = facts_of(request.name);
  Protocol p{.name = data::name_of(request.name, kProtocolNames),
             .split = facts.split,
             .files = request.files,
             .bos = "no BOS",
             .strided = facts.strided};
  p.window = request.window ? request.window : facts.window ? facts.window : request.positions;
  check(p.window >= 2 && p.window <= request.positions, "eval: protocol ", p.name, ": a window of ",
        p.window, " tokens does not fit the model's ", request.positions, " positions (--window)");
  check(facts.strided || request.stride == 0, "eval: --stride is for the protocol stride, not ",
        p.name);
  p.stride = !facts.strided ? p.window : request.stride ? request.stride : p.window / 2;
  check(p.stride <= p.window, "eval: --stride ", p.stride, " skips tokens: windows have ",
        p.window);
  if (facts.bos) {
    p.tokens = tokenizer.around().front;
    p.bos = p.tokens.empty() ? "no BOS (the tokenizer has none in front of a text)" : "BOS";
    for (int32_t id : p.tokens) p.bos += " " + tokenizer.token_of(id);
    if (!p.tokens.empty()) p.bos += " once in front";
  }
  const std::vector<int32_t> text = tokens_of(p, tokenizer);
  p.warning = data::repeated_front(tokenizer, p.tokens, text);
  p.tokens.insert(p.tokens.end(), text.begin(), text.end());
  const auto size = int64_t(p.tokens.size());
  check(facts.strided ? size >= 2 : size >= p.window, joined(p.files), ": ", size,
        " tokens do not fill one window of ", p.window);
  return p;
}

std::string describe(const Protocol& p, int64_t scored, int64_t predicted) {
  const std::string part =
      scored < p.windows() ? join("the first ", scored, " of ") : std::string();
  const std::string rest =
      p.strided
          ? "nothing dropped, each token predicted once and weighed alike, those before it context"
          : join("the last ", p.dropped(), " tokens dropped, each window by itself");
  return join("protocol ", p.name, ": split ", p.split, " from ", joined(p.files), ", ", kJoining,
              ", ", p.bos, ", ", part, p.windows(), " windows of ", p.window, " tokens, stride ",
              p.stride, ", ", rest, ", ", p.tokens.size(), " tokens, ", predicted,
              " predicted tokens");
}

TextCut cut_of(const Protocol& p, int64_t scored, int64_t predicted) {
  return {.name = p.name,
          .split = p.split,
          .files = p.files,
          .joining = kJoining,
          .bos = p.bos,
          .window = p.window,
          .stride = p.stride,
          .windows = p.windows(),
          .scored_windows = scored,
          .tokens = int64_t(p.tokens.size()),
          .dropped_tokens = p.dropped(),
          .predicted_tokens = predicted};
}

data::Json to_json(const TextCut& cut) {
  return {{"name", cut.name},
          {"split", cut.split.empty() ? data::Json() : data::Json(cut.split)},
          {"files", cut.files},
          {"joining", cut.joining},
          {"bos", cut.bos},
          {"window", cut.window},
          {"stride", cut.stride},
          {"windows", cut.windows},
          {"scored_windows", cut.scored_windows},
          {"tokens", cut.tokens},
          {"dropped_tokens", cut.dropped_tokens},
          {"predicted_tokens", cut.predicted_tokens}};
}

Perplexity score(const Protocol& p, nn::Model& model, const EvaluateCall& call) {
  if (p.strided) return evaluate_strided(model, p.tokens, {p.window, p.stride}, call);
  return evaluate(model, WindowSource(p.tokens, p.window, 0), call);
}

}  // namespace brine::distill
