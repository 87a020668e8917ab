// Answers of a model to prompts, and their scores.
#include "distill/evaluation/suites/solver.h"

#include <algorithm>

#include "autograd/ops.h"
#include "nn/generate/generation.h"
#include "tensor/comm/bytes.h"
#include "tensor/comm/shared_work.h"

namespace brine::distill {
namespace {

constexpr int64_t kRowsOfLogits = 128;  // at a time: logits are rows x vocabulary

// A batch of prompts with their answers, padded on the right, and the rows whose next token is one
// of an answer.
struct Rows {
  Tensor ids, lengths;               // i32 [B, T], i64 [B]
  std::vector<int32_t> row = {};     // in [B T]
  std::vector<int32_t> target = {};  // the token of the answer
  std::vector<uint8_t> scored = {};
  std::vector<size_t> prompt = {};
};

Rows rows_of(Prompts prompts) {
  int64_t T = 0;
  for (const data::Prompt& p : prompts)
    T = std::max(T, int64_t(p.ids.size() + p.answer.size()) - 1);
  const auto B = int64_t(prompts.size());
  Rows out{.ids = Tensor::zeros({B, T}, Dtype::i32), .lengths = Tensor::zeros({B}, Dtype::i64)};
  for (int64_t b = 0; b < B; ++b) {
    const data::Prompt& p = prompts[size_t(b)];
    int32_t* to = std::copy(p.ids.begin(), p.ids.end(), out.ids.data<int32_t>() + b * T);
    std::copy(p.answer.begin(), p.answer.end() - 1, to);  // the last token predicts nothing
    out.lengths.data<int64_t>()[b] = int64_t(p.ids.size() + p.answer.size()) - 1;
    for (size_t i = 0; i < p.answer.size(); ++i) {
      out.row.push_back(int32_t(b * T + int64_t(p.ids.size() + i) - 1));
      out.target.push_back(p.answer[i]);
      out.scored.push_back(p.scored[i]);
      out.prompt.push_back(size_t(b));
    }
  }
  return out;
}

// The index of the largest of n numbers, the first one of equals.
int64_t likeliest(const float* logits, int64_t n) {
  return std::max_element(logits, logits + n) - logits;
}

// Adds rows [first, first + n) to the answers, from their logits [n, V].
void add(std::vector<ForcedAnswer>& answers, const Rows& rows, size_t first, const Tensor& logits) {
  const int64_t n = logits.dim(0), V = logits.dim(1);
  const auto target = std::span(rows.target).subspan(first, size_t(n));
  const Tensor loss = cross_entropy(logits, Tensor::from(target, {n})).to(Device{});
  const Tensor values = logits.to(Device{}).contiguous();
  for (int64_t i = 0; i < n; ++i) {
    const size_t at = first + size_t(i);
    ForcedAnswer& a = answers[rows.prompt[at]];
    const bool hit = likeliest(values.data<float>() + i * V, V) == target[size_t(i)];
    a.all_hit = a.all_hit && hit;
    if (!rows.scored[at]) continue;
    ++a.tokens;
    a.hits += hit;
    a.nll += double(loss.data<float>()[i]);
  }
}

void check_prompts(Prompts prompts) {
  check(!prompts.empty(), "suite: no prompts");
  for (const data::Prompt& p : prompts) {
    check(!p.ids.empty() && !p.answer.empty() && p.scored.size() == p.answer.size(),
          "suite: a prompt of ", p.ids.size(), " tokens with ", p.answer.size(),
          " tokens of an answer and ", p.scored.size(), " marks");
  }
}

}  // namespace

ModelSolver::ModelSolver(nn::Model& model, const data::Tokenizer& tokenizer,
                         const nn::RuntimeOptions& options,
                         const std::optional<nn::CachedReading>& reading)
    : model_(model), tokenizer_(tokenizer), options_(options), reading_(reading) {
  check(model.shape().causal, "suite: prompts need a causal model");
}

std::vector<ForcedAnswer> ModelSolver::forced(Prompts prompts) {
  NoGrad off;
  check_prompts(prompts);
  const Rows rows = rows_of(prompts);
  if (reading_)
    nn::check_fits(nn::memory_of(model_, *reading_, options_, rows.ids.dim(1)), "suite");
  const Tensor hidden =  // a causal row does not see the padding after it
      reading_
          ? nn::hidden_through_cache(model_, rows.ids, *reading_, options_)
          : model_.hidden({.ids = rows.ids, .lengths = rows.lengths, .options = options_}).detach();
  const Tensor table = hidden.contiguous().view({-1, hidden.dim(2)});
  std::vector<ForcedAnswer> out(prompts.size(), {.all_hit = true});
  const auto count = int64_t(rows.row.size());
  for (int64_t first = 0; first < count; first += kRowsOfLogits) {
    const int64_t n = std::min(kRowsOfLogits, count - first);
    const auto chosen = std::span(rows.row).subspan(size_t(first), size_t(n));
    const Tensor states = embedding(table, Tensor::from(chosen, {n}));
    add(out, rows, size_t(first), model_.logits(states).detach());
  }
  return out;
}

std::vector<std::string> ModelSolver::generated(Prompts prompts) {
  check_prompts(prompts);
  nn::GenerationRequest request;
  request.tokens = 1;
  request.how.temperature = 0;
  std::vector<std::vector<int32_t>> ids;
  for (const data::Prompt& p : prompts) {
    ids.push_back(p.ids);
    request.tokens = std::max(request.tokens, p.answer_tokens);
  }
  if (const auto eos = tokenizer_.special().eos) request.stop_tokens.push_back(*eos);
  request.stop_when = [&](size_t i, const std::string& text) {
    return data::string_match_all(prompts[i].references, text) == 1;
  };
  request.options = options_;
  if (reading_) {
    request.cache = reading_->cache;
    request.coded = reading_->coded;
    request.part = reading_->part;
  }
  request.vocabulary = tokenizer_.vocab_size();
  nn::Generation generation(model_, request,
                            [&](int32_t id) { return tokenizer_.decode_next(id); });
  generation.start(ids);
  generation.run();
  std::vector<std::string> out;
  for (const nn::Sequence& s : generation.sequences()) out.push_back(s.text.text());
  return out;
}

namespace {

std::vector<PromptScore> score_batch(Solver& solver, Prompts batch, const ScoreCall& call) {
  std::vector<PromptScore> out;
  std::vector<data::Prompt> open;  // to generate
  std::vector<size_t> indices;
  for (const ForcedAnswer& a : solver.forced(batch)) {
    check(a.tokens > 0, "suite: an answer without scored tokens");
    const data::Prompt& p = batch[out.size()];
    PromptScore score{.forced = double(a.hits) / double(a.tokens), .nll = a.nll / double(a.tokens)};
    const bool wanted = call.generate && solver.can_generate() && !p.references.empty();
    if (wanted && a.all_hit) score.generated = 1;
    if (wanted && !a.all_hit) {
      indices.push_back(out.size());
      open.push_back(p);
    }
    out.push_back(score);
  }
  if (open.empty()) return out;
  const std::vector<std::string> texts = solver.generated(open);
  for (size_t i = 0; i < indices.size(); ++i) {
    out[indices[i]].generated = data::string_match_all(open[i].references, texts[i]);
  }
  return out;
}

}  // namespace

std::vector<PromptScore> score_prompts(Solver& solver, Prompts prompts, const ScoreCall& call) {
  std::vector<PromptScore> out;
  const int64_t all = int64_t(prompts.size()), size = call.batch_size;
  SelfCommunicator alone;
  divide_work(
      call.ranks ? *call.ranks : alone, "prompts", (all + size - 1) / size,
      [&](int64_t n) {
        const int64_t first = n * size;
        ByteWriter part;
        part.list(score_batch(
            solver, prompts.subspan(size_t(first), size_t(std::min(size, all - first))), call));
        return part.bytes();
      },
      [&](int64_t, const std::string& part) {
        const std::vector<PromptScore> scores = ByteReader(part).list<PromptScore>();
        out.insert(out.end(), scores.begin(), scores.end());
      });
  return out;
}

}  // namespace brine::distill
