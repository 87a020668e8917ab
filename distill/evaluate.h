// Perplexity over windows that do not overlap.
#pragma once

#include <functional>

#include "distill/batch.h"
#include "nn/model.h"

namespace brine::distill {

struct Perplexity {
  double nll = 0;        // mean negative log-likelihood of a predicted token, natural logarithm
  int64_t tokens = 0;    // predicted tokens
  double value() const;  // exp(nll)
};

struct EvaluateCall {
  int64_t batch_size = 8;
  int64_t max_windows = 0;  // 0 = all
  int64_t loss_from = 0;    // only targets from this position of a window on
  nn::AttentionDials dials = {};
  // Called for every batch with a pass of its own (mask recall); may be empty.
  nn::LayerObserver* observer = nullptr;
  std::function<void(const Batch&)> before_batch = {};
};

// Every window by itself, without a token before it; its first token is not predicted.
Perplexity evaluate(nn::Model& model, const WindowSource& windows, const EvaluateCall& call);

}  // namespace brine::distill
