// Evaluation: both ways of cutting the text use one sum over batches of windows of one length.
#include "distill/evaluation/evaluate.h"

#include <algorithm>
#include <cmath>

#include "autograd/node.h"
#include "autograd/ops.h"
#include "nn/generate/generation.h"
#include "tensor/comm/bytes.h"
#include "tensor/comm/shared_work.h"

namespace brine::distill {
namespace {

// Some windows of one length, and the first target of each that counts.
struct Piece {
  int64_t first = 0, windows = 0, from = 0;
};

struct Score {
  nn::Model& model;
  const EvaluateCall& call;
  double sum = 0;
  int64_t tokens = 0;
  std::vector<float> losses = {};  // of the predicted tokens of one batch

  Perplexity over(const std::vector<Piece>& pieces,
                  const std::function<Batch(const Piece&)>& batch_of) {
    SelfCommunicator alone;
    divide_work(
        call.ranks ? *call.ranks : alone, "evaluation", int64_t(pieces.size()),
        [&](int64_t n) {
          const Piece& piece = pieces[size_t(n)];
          return part_of(start_of(batch_of(piece)), piece.from);
        },
        [&](int64_t, const std::string& part) { add(part); });
    check(tokens > 0, "evaluate: no token is predicted");
    return {.nll = sum / double(tokens), .tokens = tokens};
  }

  Batch start_of(Batch batch) const {
    const int64_t tokens = call.max_tokens;
    if (tokens == 0 || tokens >= batch.ids.dim(1)) return batch;
    batch.ids = batch.ids.slice(1, 0, tokens).contiguous();
    if (batch.lengths.defined()) {
      for (int64_t i = 0; i < batch.lengths.numel(); ++i) {
        int64_t& length = batch.lengths.data<int64_t>()[i];
        length = std::min(length, tokens);
      }
    }
    return batch;
  }

  // The losses of targets from position `from` of a window on, and what was measured.
  std::string part_of(const Batch& batch, int64_t from) {
    if (call.before_batch) call.before_batch(batch);
    // Padding is after what a row of a causal model sees, but an observer would count it.
    check(!call.observer || call.before_batch || !batch.lengths.defined(),
          "evaluate: an observer of texts of several lengths needs each batch before it");
    check(!call.observer || !call.reading,
          "evaluate: what is read through a cache is not observed");
    if (call.reading)
      nn::check_fits(nn::memory_of(model, *call.reading, call.options, batch.ids.dim(1)), "eval");
    Tensor hidden =
        call.reading
            ? nn::hidden_through_cache(model, batch.ids, *call.reading, call.options)
            : model.hidden({.ids = batch.ids, .options = call.options, .observer = call.observer})
                  .detach();
    hidden = hidden.view({-1, hidden.dim(-1)});
    const Tensor target = nn::next_tokens(batch.ids, batch.lengths, from).view({-1});
    losses.clear();
    const int64_t rows = target.numel(), step = model.rows_of_logits();
    for (int64_t first = 0; first < rows; first += step) {
      const int64_t n = std::min(step, rows - first);
      score_rows(hidden.slice(0, first, n), target.slice(0, first, n));
    }
    ByteWriter part;
    part.list(losses);
    for (BatchMeasure* measure : call.measures) part.text(measure->take());
    return part.bytes();
  }

  // One addition for each token, in the order of the text, whichever rank computed its loss.
  void add(const std::string& part) {
    ByteReader reader(part);
    for (const float loss : reader.list<float>()) {
      sum += double(loss);
      ++tokens;
    }
    check(std::isfinite(sum),
          "evaluate: the loss of a token is not finite; a weight may be NaN or infinite");
    for (BatchMeasure* measure : call.measures) measure->add(reader.text());
  }

  void score_rows(const Tensor& hidden, const Tensor& target) {
    Tensor logits = model.logits(hidden).detach();
    logits = logits.view({-1, logits.dim(-1)});
    const Tensor loss = cross_entropy(logits, target).to(Device{});
    for (int64_t r = 0; r < target.numel(); ++r) {
      if (target.data<int32_t>()[r] >= 0) losses.push_back(loss.data<float>()[r]);
    }
  }
};

void check_causal(const nn::Model& model) {
  check(model.shape().causal, "evaluate: the perplexity of next tokens needs a causal model");
}

int64_t limited(int64_t windows, const EvaluateCall& call) {
  return call.max_windows ? std::min(call.max_windows, windows) : windows;
}

}  // namespace

double Perplexity::value() const { return std::exp(nll); }

Perplexity evaluate(nn::Model& model, const WindowSource& windows, const EvaluateCall& call) {
  NoGrad off;
  check_causal(model);
  const int64_t count = limited(windows.size(), call);
  std::vector<Piece> pieces;
  for (int64_t first = 0; first < count; first += call.batch_size) {
    pieces.push_back({first, std::min(call.batch_size, count - first), call.loss_from});
  }
  return Score{model, call}.over(
      pieces, [&](const Piece& piece) { return windows.in_order(piece.first, piece.windows); });
}

int64_t StridedWindows::count(int64_t tokens) const {
  return tokens <= window ? 1 : (tokens - window + stride - 1) / stride + 1;
}

Perplexity evaluate_strided(nn::Model& model, std::span<const int32_t> tokens,
                            const StridedWindows& windows, const EvaluateCall& call) {
  NoGrad off;
  check_causal(model);
  const int64_t window = windows.window, stride = windows.stride, size = int64_t(tokens.size());
  check(window >= 2 && stride >= 1 && stride <= window, "evaluate: a stride of ", stride,
        " cannot be used with windows of ", window, " tokens");
  check(size >= 2, "evaluate: ", size, " tokens predict nothing");
  check(call.loss_from == 0, "evaluate: loss_from cannot be combined with a stride");
  const int64_t count = limited(windows.count(size), call);
  auto length = [&](int64_t i) { return std::min(window, size - i * stride); };
  // The first window predicts all of its tokens, later ones only those that the previous window did
  // not contain.
  auto from = [&](int64_t i) { return i == 0 ? 0 : window - stride; };
  std::vector<Piece> pieces;
  for (int64_t first = 0; first < count;) {
    int64_t B = 1;
    while (B < call.batch_size && first + B < count && length(first + B) == length(first) &&
           from(first + B) == from(first))
      ++B;
    if (length(first) > std::max<int64_t>(from(first), 1))
      pieces.push_back({first, B, from(first)});
    first += B;
  }
  return Score{model, call}.over(pieces, [&](const Piece& piece) {
    const int64_t B = piece.windows, T = length(piece.first);
    Batch batch;
    batch.ids = Tensor::empty({B, T}, Dtype::i32);
    batch.tokens = B * T;
    for (int64_t i = 0; i < B; ++i) {
      const auto part = tokens.subspan(size_t((piece.first + i) * stride), size_t(T));
      std::copy(part.begin(), part.end(), batch.ids.data<int32_t>() + i * T);
      batch.windows.push_back(piece.first + i);
    }
    return batch;
  });
}

Tensor KeysRead::observe(int64_t, const nn::Tap& tap, const Tensor& output) {
  const double rows = double(output.dim(0) * output.dim(1));
  if (tap.has("kept_keys")) {
    sum_.keys += tap.get("kept_keys").data<double>()[0] * rows;
  } else if (tap.has("row_pointers")) {
    const Tensor ends = tap.get("row_pointers").to(Device{});
    sum_.keys += double(ends.data<int64_t>()[ends.numel() - 1]) / double(tap.get("q").dim(1));
  } else {
    return {};
  }
  sum_.rows += rows;
  return {};
}

std::string KeysRead::take() {
  ByteWriter part;
  part.number(sum_);
  sum_ = {};
  return part.bytes();
}

void KeysRead::add(const std::string& part) {
  const Sum other = ByteReader(part).number<Sum>();
  sum_.keys += other.keys;
  sum_.rows += other.rows;
}

double keys_of_all(const nn::ModelShape& shape, int64_t T) {
  return shape.causal ? 0.5 * double(T + 1) : double(T);
}

double keys_of_window(int64_t k, int64_t T, int64_t block) {
  double sum = 0;
  for (int64_t t = 0; t < T; ++t) {
    const int64_t seen = t / block + 1, kept = std::min(seen, (k + block - 1) / block);
    sum += double((kept - 1) * block + t % block + 1);
  }
  return sum / double(T);
}

int64_t k_of_window(double read, std::span<const int64_t> lengths, int64_t block) {
  const auto mean = [&](int64_t k) {
    double sum = 0;
    for (int64_t T : lengths) sum += keys_of_window(k, T, block);
    return sum / double(lengths.size());
  };
  const int64_t longest = std::ranges::max(lengths);
  int64_t k = block;
  while (k < longest && mean(k) < read) k += block;
  return k > block && read - mean(k - block) < mean(k) - read ? k - block : k;
}

double keys_read(nn::Model& model, const Tensor& ids, const nn::RuntimeOptions& options) {
  if (nn::is_full_attention(model.attention_name())) return keys_of_all(model.shape(), ids.dim(1));
  if (!model.attention_traits().sparse) return 0;
  NoGrad off;
  KeysRead read;
  model.hidden({.ids = ids, .options = options, .observer = &read});
  return read.mean();
}

}  // namespace brine::distill
