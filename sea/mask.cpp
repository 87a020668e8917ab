// From the estimate to the masked attention, and the average for the remaining keys.
#include "sea/mask.h"

#include <algorithm>
#include <cmath>

namespace brine::sea {
namespace {

// 1 where row t of [B, H, T] is valid, 0 at padding.
Tensor valid_rows(const Tensor& v, const Visibility& visible) {
  const auto* lengths = visible.lengths.data<int64_t>();
  const int64_t H = v.dim(1), rows = v.dim(2);
  return Tensor::filled({v.dim(0), H, rows}, v.dtype(), v.device(), [&](const Tensor& valid) {
    dispatch_float(v.dtype(), [&]<class T>() {
      T* out = valid.data<T>();
      for (int64_t i = 0; i < valid.numel(); ++i) out[i] = i % rows < lengths[i / rows / H] ? 1 : 0;
    });
  });
}

}  // namespace

Mask make_mask(const Tensor& estimate, const Visibility& visible, const SelectConfig& config,
               int64_t keys, const Tensor& forced, const Refinement& refinement) {
  const int64_t oversample = refinement.oversample;
  check(oversample >= 1, "sea: oversample is ", oversample, ", must be at least 1");
  SelectConfig candidates = config;
  // More candidates than keys are all keys; the product of large settings would overflow.
  const int64_t all = std::max(keys ? keys : estimate.dim(2), config.k);
  candidates.k = oversample > all / std::max<int64_t>(config.k, 1) ? all : config.k * oversample;
  Mask mask;
  mask.selection = select_columns(estimate, visible, candidates);
  if (forced.defined()) mask.selection.selected = forced;
  mask.csr = build_csr(mask.selection.selected, visible, candidates.k, keys,
                       forced.defined() ? 0 : mask.selection.most_entries);
  if (oversample > 1) mask.csr = refine(refinement.q, refinement.k, mask.csr, config.k, visible);
  return mask;
}

Tensor masked_attention(const Tensor& q, const Tensor& k, const Tensor& v, const FlatCsr& csr,
                        bool dense, Tensor* probabilities) {
  if (!dense) return sparse_attention(q, k, v, csr, probabilities);
  check_csr("masked_attention", csr, q, k);
  Tensor scores = group_matmul(q, k, true);
  Tensor p = masked_softmax(scores, csr_to_mask(csr), 1 / std::sqrt(double(q.dim(3))));
  if (probabilities) *probabilities = p.detach();
  return group_matmul(p, v, false);
}

Tensor average_values(const Tensor& estimate, const Tensor& v, const Visibility& visible) {
  if (!visible.causal) return estimate_average(estimate, v, visible);
  Tensor mean = running_mean(v);
  return visible.lengths.defined() ? scale_rows(mean, valid_rows(v, visible)) : mean;
}

}  // namespace brine::sea
