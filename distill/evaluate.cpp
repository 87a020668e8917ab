// Perplexity over windows that do not overlap.
#include "distill/evaluate.h"

#include <algorithm>
#include <cmath>

#include "autograd/ops.h"

namespace brine::distill {

double Perplexity::value() const { return std::exp(nll); }

Perplexity evaluate(nn::Model& model, const WindowSource& windows, const EvaluateCall& call) {
  NoGrad off;
  check(model.shape().causal, "evaluate: the perplexity of next tokens needs a causal model");
  int64_t count = call.max_windows ? std::min(call.max_windows, windows.size()) : windows.size();
  double sum = 0;
  Perplexity out;
  for (int64_t first = 0; first < count; first += call.batch_size) {
    Batch batch = windows.in_order(first, std::min(call.batch_size, count - first));
    if (call.before_batch) call.before_batch(batch);
    Tensor hidden =
        model.hidden({.ids = batch.ids, .dials = call.dials, .observer = call.observer}).detach();
    Tensor logits = model.logits(hidden).detach();
    logits = logits.view({-1, logits.dim(-1)});
    Tensor target = nn::next_tokens(batch.ids, batch.lengths, call.loss_from).view({-1});
    Tensor loss = cross_entropy(logits, target);
    for (int64_t r = 0; r < target.numel(); ++r) {
      if (target.data<int32_t>()[r] < 0) continue;
      sum += double(loss.data<float>()[r]);
      ++out.tokens;
    }
  }
  check(out.tokens > 0, "evaluate: no token is predicted");
  out.nll = sum / double(out.tokens);
  return out;
}

}  // namespace brine::distill
