// Perplexity over windows of a text: adjacent, or overlapping by a stride.
#pragma once

#include <functional>
#include <span>

#include "distill/batches/batch.h"
#include "distill/ranks/measure.h"
#include "nn/models/model_state.h"
#include "tensor/comm/communicator.h"

namespace brine::distill {

struct Perplexity {
  double nll = 0;        // mean negative log-likelihood of a predicted token, natural logarithm
  int64_t tokens = 0;    // predicted tokens
  double value() const;  // exp(nll)
};

struct EvaluateCall {
  int64_t batch_size = 8;
  int64_t max_windows = 0;  // 0 = all
  int64_t max_tokens = 0;   // only the first tokens of every window; 0 = all
  int64_t loss_from = 0;    // only targets from this position of a window on
  nn::RuntimeOptions options = {};
  std::optional<nn::CachedReading> reading = {};  // none: windows in one pass; excludes an observer
  nn::LayerObserver* observer = nullptr;          // of every layer of every batch
  std::function<void(const Batch&)> before_batch = {};
  // What the observers count. It is passed on batch by batch, in the order of the batches.
  std::vector<BatchMeasure*> measures = {};
  // The processes that divide the batches; null: this one alone. Each has the bits of one process
  // afterwards, in its result and its measures; an observer sees the batches of its rank only.
  Communicator* ranks = nullptr;
};

// Every window separately, without earlier tokens; its first token is not predicted.
Perplexity evaluate(nn::Model& model, const WindowSource& windows, const EvaluateCall& call);

// A window of at most `window` tokens starts every `stride` tokens, until one reaches the end of
// the text; a token is predicted once, by the first window that contains it; the tokens before it
// in that window are its context. Every predicted token weighs the same; the text's first token is
// not predicted, nor with stride = window the first one of any window. `loss_from` must be 0.
struct StridedWindows {
  int64_t window = 0, stride = 0;  // 2 <= window, 1 <= stride <= window
  int64_t count(int64_t tokens) const;
};
Perplexity evaluate_strided(nn::Model& model, std::span<const int32_t> tokens,
                            const StridedWindows& windows, const EvaluateCall& call);

}  // namespace brine::distill
