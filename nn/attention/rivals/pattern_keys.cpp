// The mask of listed keys for all queries or for the newest one, and attention on it.
#include "nn/attention/rivals/pattern_keys.h"

#include <optional>

#include "nn/attention/chosen_keys.h"
#include "tensor/meter/cost_meter.h"

namespace brine::nn {

KeyListShape PatternKeys::list_shape(const AttentionInput& in, int64_t keys) const {
  return {.batch = in.q.dim(0),
          .heads = in.q.dim(1),
          .rows = in.q.dim(2),
          .keys = keys,
          .lists = lists()};
}

Tensor PatternKeys::forward(const AttentionInput& in) {
  fill(in);
  const KeysOfQuery keys_of_query = keys_of(in.options);
  const RowWidths widths(in.visible, in.q.dim(2));
  std::optional<CostScope> part(std::in_place, "mask");
  const FlatCsr mask = key_lists(list_shape(in, in.k.dim(2)), in.q.device(),
                                 [&](int64_t b, int64_t h, int64_t t, std::vector<int32_t>& keys) {
                                   if (const int64_t w = widths(b, t)) keys_of_query(h, t, w, keys);
                                 });
  part.reset();
  return attend_on(in, mask);
}

Tensor PatternKeys::step(const AttentionInput& in, AttentionState& state) const {
  NoGrad off;
  auto& cache = dynamic_cast<KeyValueState&>(state);
  const KeysOfQuery keys_of_query = keys_of(in.options);
  cache.append(in.k, in.v);
  const FlatCsr mask =
      key_lists_of_step(list_shape(in, cache.keys.dim(2)), cache.lengths(), in.q.device(),
                        [&](int64_t, int64_t h, int64_t t, std::vector<int32_t>& keys) {
                          keys_of_query(h, t, t + 1, keys);
                        });
  return attend_on({.q = in.q, .k = cache.keys, .v = cache.values, .hidden = {}, .tap = in.tap},
                   mask);
}

}  // namespace brine::nn
