// Temperature, top-k and top-p without sorting the vocabulary: only the needed tokens are taken
// from a heap.
#include "nn/generate/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "tensor/base/error.h"

namespace brine::nn {

int32_t sample(std::span<const float> logits, const Sampling& how, double uniform) {
  int32_t best = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    check(!std::isnan(logits[i]), "sample: the logit of token ", i, " is NaN");
    if (logits[i] > logits[size_t(best)]) best = int32_t(i);
  }
  const float max_logit = logits[size_t(best)];
  check(std::isfinite(max_logit), "sample: the largest logit is ", max_logit);
  if (how.temperature == 0) return best;

  auto less_likely = [&](int32_t a, int32_t b) {
    return logits[size_t(a)] < logits[size_t(b)] ||
           (logits[size_t(a)] == logits[size_t(b)] && a > b);
  };
  std::vector<int32_t> left(logits.size());
  std::iota(left.begin(), left.end(), 0);
  if (how.top_k > 0 && size_t(how.top_k) < left.size()) {
    std::nth_element(left.begin(), left.begin() + how.top_k, left.end(),
                     [&](int32_t a, int32_t b) { return less_likely(b, a); });
    left.resize(size_t(how.top_k));
  }
  std::vector<double> share(logits.size());
  double all = 0;
  for (int32_t id : left) {
    all += share[size_t(id)] = std::exp(double(logits[size_t(id)] - max_logit) / how.temperature);
  }
  std::make_heap(left.begin(), left.end(), less_likely);
  // The likeliest first, until they have enough of the mass; only these are sampled from.
  const double enough = how.top_p * all;
  std::vector<int32_t> kept;
  double mass = 0;
  while (!left.empty() && (kept.empty() || mass < enough)) {
    std::pop_heap(left.begin(), left.end(), less_likely);
    kept.push_back(left.back());
    left.pop_back();
    mass += share[size_t(kept.back())];
  }
  double at = uniform * mass;
  for (int32_t id : kept) {
    at -= share[size_t(id)];
    if (at <= 0) return id;
  }
  return kept.back();
}

}  // namespace brine::nn
