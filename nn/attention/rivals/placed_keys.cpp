// The mask of listed keys, and attention on it.
#include "nn/attention/rivals/placed_keys.h"

#include <optional>

#include "nn/attention/chosen_keys.h"
#include "tensor/meter/cost_meter.h"

namespace brine::nn {

Tensor PlacedKeys::forward(const AttentionInput& in) {
  const KeysOfQuery keys_of_query = keys_of(in.options);
  const RowWidths widths(in.visible, in.q.dim(2));
  std::optional<CostScope> part(std::in_place, "mask");
  const KeyListShape shape{.batch = in.q.dim(0),
                           .heads = in.q.dim(1),
                           .rows = in.q.dim(2),
                           .keys = in.k.dim(2),
                           .lists = lists()};
  const FlatCsr mask = key_lists(shape, in.q.device(),
                                 [&](int64_t b, int64_t h, int64_t t, std::vector<int32_t>& keys) {
                                   if (const int64_t w = widths(b, t)) keys_of_query(h, t, w, keys);
                                 });
  part.reset();
  return attend_on(in, mask);
}

}  // namespace brine::nn
