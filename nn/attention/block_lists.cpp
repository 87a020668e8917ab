// Attention over lists of key blocks, and what observers see of them.
#include "nn/attention/block_lists.h"

#include <cmath>

#include "autograd/ops_blocks.h"
#include "nn/attention/chosen_keys.h"

namespace brine::nn {

Tensor attend_blocks(const AttentionInput& in, const Tensor& q, const BlockMask& mask,
                     const BlockConfig& config) {
  if (!in.options.dense_path) {
    return block_attention(q, in.k, in.v, mask, in.visible,
                           (config.chosen + config.fixed()) * config.block);
  }
  const Tensor keys = csr_to_mask(blocks_to_csr(mask, q.dim(1), in.visible, in.k.dim(2)));
  const Tensor p =
      masked_softmax(group_matmul(q, in.k, true), keys, 1 / std::sqrt(double(q.dim(3))));
  return group_matmul(p, in.v, false);
}

bool continues(const AttentionInput& in) { return in.state && in.state->length(in.slot) > 0; }

PromptPart::PromptPart(const AttentionInput& input, const BlockConfig& config)
    : in(input),
      state(dynamic_cast<const KeyValueState&>(*in.state)),
      tokens(state.length(in.slot) + in.q.dim(2)),
      visible{.causal = true, .lengths = Tensor::from(std::vector<int64_t>{tokens}, {1})} {
  const int64_t first = state.length(in.slot);
  check(in.q.dim(0) == 1 && first % config.block == 0, "attention: a part of a prompt is of one ",
        "sequence and begins at a multiple of ", config.block, " tokens, not at ", first);
  std::vector<int32_t> numbers;
  for (int64_t t = first; t < tokens; t += config.tile) numbers.push_back(int32_t(t / config.tile));
  tiles = Tensor::from(numbers, {int64_t(numbers.size())});
}

Tensor PromptPart::attend(const BlockMask& mask, const BlockConfig& config) const {
  auto [k, v] = state.rows(in.slot, in.q.dtype());
  return merge_heads(
      block_attention(in.q, k, v, mask, visible, (config.chosen + config.fixed()) * config.block));
}

Tensor attend_window(const AttentionInput& in, const BlockConfig& config) {
  const PromptPart part(in, config);
  dynamic_cast<KeyValueState&>(*in.state).extend(in.slot, in.k, in.v);
  return part.attend(select_blocks({.q = in.q, .groups = in.k.dim(1)}, config, part.visible,
                                   part.tokens, part.tiles),
                     config);
}

void show_blocks(const AttentionInput& in, const BlockMask& mask, bool keys) {
  const int64_t T = in.k.dim(2);
  in.tap->put("kept_keys", Tensor::from(std::vector<double>{kept_keys(mask, in.visible, T)}, {1}));
  if (!keys) return;
  const FlatCsr csr = blocks_to_csr(mask, in.q.dim(1), in.visible, T);
  show_mask(in, csr);
  if (!in.tap->requested(kProbabilities)) return;
  NoGrad off;
  Tensor probabilities;
  sparse_attention(in.q.detach(), in.k.detach(), in.v.detach(), csr, &probabilities);
  in.tap->put(kProbabilities, probabilities);
}

}  // namespace brine::nn
