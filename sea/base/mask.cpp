// From the estimate to the masked attention, and the average for the remaining keys.
#include "sea/base/mask.h"

#include <vector>

namespace brine::sea {
Mask make_mask(const Tensor& estimate, const Visibility& visible, const SelectConfig& config,
               int64_t keys, const Tensor& forced) {
  Mask mask;
  mask.selection = select_columns(estimate, visible, config);
  if (forced.defined()) mask.selection.selected = forced;
  mask.csr = build_csr(mask.selection.selected, visible, config.k, keys,
                       forced.defined() ? 0 : mask.selection.max_entries);
  return mask;
}

Tensor gates_of_heads(const Tensor& gates, int64_t B, int64_t T) {
  const int64_t H = gates.dim(0);
  return reshape(rows_from_table(reshape(gates, {H, 2}), B, T), {B, H, T, 2});
}

Tensor average_values(const Tensor& estimate, const Tensor& v, const Visibility& visible) {
  if (!visible.causal) return estimate_average(estimate, v, visible);
  const Tensor mean = running_mean(v);
  if (!visible.lengths.defined()) return mean;
  // Each head is a sequence of its own; its rows of padding become 0.
  const int64_t B = v.dim(0), G = v.dim(1);
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < B * G; ++i) lengths.push_back(visible.lengths.data<int64_t>()[i / G]);
  const Tensor flat = reshape(mean, {B * G, v.dim(2), v.dim(3)});
  return reshape(zero_padding(flat, Tensor::from(lengths, {B * G})), mean.shape());
}

}  // namespace brine::sea
