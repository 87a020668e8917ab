// The decoding state of a mask of blocks, and the step of one new token of every sequence.
#include "autograd/ops.h"
#include "autograd/ops_blocks.h"
#include "autograd/ops_units.h"
#include "sea/block_attention.h"

namespace brine::sea {

BlockState::BlockState(const BlockAttention& block, const nn::StateRequest& r)
    : KeyValueState(r.batch, r.capacity, block.shape_.groups(), block.shape_.head_size, r.cached(),
                    r.device),
      config_(block.config_.blocks(r.options.k)),
      groups_(block.shape_.groups()),
      levels_(config_.level(std::max(r.capacity, block.shape_.max_positions) / config_.block) + 1),
      keys_(make_sums("key_sums", config_.block / config_.parts, block.shape_.head_size, r)),
      features_(block.prior_.query
                    ? make_sums("feature_sums", config_.block, block.config_.prior_features, r)
                    : Sums{}),
      value_sums_(part("value_sums", {r.batch, groups_, block.shape_.head_size}, Dtype::f64)),
      counts_(part("block_counts", {r.batch, groups_, 1}, Dtype::i32)),
      entries_(part(
          "block_entries",
          {r.batch, groups_, 1,
           config_.most_kept(std::max(r.capacity, block.shape_.max_positions) / config_.block + 1)},
          Dtype::i32)) {}

// Parts by level; a saved state has the rows of its own tokens alone.
BlockState::Sums BlockState::make_sums(const std::string& name, int64_t keys_of_first,
                                       int64_t width, const nn::StateRequest& r) {
  Sums sums{.keys = keys_of_first, .whole = {}, .open = {}};
  for (int64_t z = 0; z < levels_; ++z) {
    const int64_t keys = sums.keys << z;
    sums.whole.push_back(&part(join(name, "_", z), {r.batch, groups_, r.capacity / keys, width},
                               r.dtype, 2, [keys](int64_t tokens) { return tokens / keys; }));
    sums.open.push_back(&part(join("open_", name, "_", z), {r.batch, groups_, width}, Dtype::f64));
  }
  return sums;
}

void BlockState::fill_sums(const Sums& sums, int64_t first, const Tensor& x) {
  const int64_t B = x.dim(0), T = x.dim(2);
  const Tensor lengths = this->lengths().slice(0, first, B);
  for (size_t z = 0; z < sums.whole.size(); ++z) {
    const int64_t keys = sums.keys << z, blocks = (T + keys - 1) / keys;
    const Tensor units = Tensor::full({B}, double(keys), Dtype::i64);
    const Tensor whole = sum_units(x, lengths, units, T / keys, x.dtype());
    if (T >= keys) copy_into(sums.whole[z]->slice(0, first, B).slice(2, 0, T / keys), whole);
    const Tensor all = sum_units(x, lengths, units, blocks, Dtype::f64);
    for (int64_t b = 0; b < B; ++b) {
      copy_into(sums.open[z]->slice(0, first + b, 1),
                all.slice(0, b, 1)
                    .slice(2, (length(first + b) - 1) / keys, 1)
                    .contiguous()
                    .view({1, groups_, x.dim(3)}));
    }
  }
}

void BlockState::fill(int64_t first, const Tensor& k, const Tensor& v, const Tensor& psi_k,
                      const Visibility& visible, const BlockMask& mask) {
  KeyValueState::fill(first, k, v, visible.lengths);
  const int64_t B = k.dim(0), T = k.dim(2), room = std::min(mask.capacity(), entries_.dim(3));
  fill_sums(keys_, first, k.detach());
  if (!features_.whole.empty()) fill_sums(features_, first, psi_k.detach());
  const Tensor lengths = this->lengths().slice(0, first, B);
  copy_into(value_sums_.slice(0, first, B),
            sum_units(v, lengths, Tensor::full({B}, double(std::max<int64_t>(T, 1)), Dtype::i64), 1,
                      Dtype::f64)
                .view({B, groups_, v.dim(3)}));
  for (int64_t b = 0; b < B; ++b) {
    const int64_t tile = (length(first + b) - 1) / config_.tile;
    copy_into(counts_.slice(0, first + b, 1), mask.counts.slice(0, b, 1).slice(2, tile, 1));
    copy_into(entries_.slice(0, first + b, 1).slice(3, 0, room),
              mask.entries.slice(0, b, 1).slice(2, tile, 1).slice(3, 0, room));
  }
}

void BlockState::append_sums(const Sums& sums, const Tensor& row, const Tensor& at) {
  for (size_t z = 0; z < sums.whole.size(); ++z) {
    append_to_blocks(*sums.whole[z], *sums.open[z], row, at, sums.keys << z);
  }
}

void BlockState::append(const Tensor& k, const Tensor& v, const Tensor& psi_k) {
  const Tensor at = lengths().clone();
  KeyValueState::append(k, v);
  append_sums(keys_, k, at);
  if (!features_.whole.empty()) append_sums(features_, psi_k, at);
}

BlockScores BlockState::scores() const {
  BlockScores s;
  for (const Tensor* level : keys_.whole) s.key_sums.push_back(*level);
  for (const Tensor* level : features_.whole) s.psi_sums.push_back(*level);
  if (!features_.open.empty()) s.psi_k = *features_.open[0];
  return s;
}

BlockMask BlockState::mask() const {
  return {.counts = counts_,
          .entries = entries_,
          .tiles = {},
          .block = config_.block,
          .tile = config_.tile};
}

std::unique_ptr<nn::AttentionState> BlockAttention::make_state(
    const nn::StateRequest& request) const {
  return std::make_unique<BlockState>(*this, request);
}

Tensor BlockAttention::step(const nn::AttentionInput& in, nn::AttentionState& any) const {
  NoGrad off;
  auto& state = dynamic_cast<BlockState&>(any);
  const Tensor psi_k = prior_.key ? (*prior_.key)(in.k, in.k_content, {}) : Tensor();
  state.append(in.k, in.v, psi_k);
  BlockScores scores = state.scores();
  scores.q = in.q.detach().contiguous();
  scores.gain = prior_.pooled_gain->value;
  if (prior_.query) {
    scores.psi_q = (*prior_.query)(in.q, in.q_content, {});
    scores.prior_gain = prior_.gain->value;
    scores.least_share = 1e-7;
  }
  const BlockMask mask = state.mask();
  select_blocks_step(mask, scores, config_.blocks(in.options.k), state.lengths());
  const Tensor attended =
      block_attention_step(in.q, state.keys, state.values, mask, state.lengths());
  const Tensor average = running_mean_step(state.value_sums_, in.v, state.lengths());
  const Tensor gates = gates_of(in.q.dim(0), 1);
  if (in.tap) in.tap->put("gates", gates);
  return mix_outputs(attended, average, gates, {.causal = false, .lengths = state.lengths()});
}

}  // namespace brine::sea
