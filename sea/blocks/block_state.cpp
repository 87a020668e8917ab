// The decoding state of a mask of blocks, and the step of one new token of every sequence.
#include "autograd/ops.h"
#include "autograd/ops_blocks.h"
#include "autograd/ops_units.h"
#include "sea/base/mask.h"
#include "sea/blocks/block_attention.h"

namespace brine::sea {

BlockState::BlockState(const BlockAttention& block, const nn::StateRequest& r)
    : KeyValueState(r.batch, r.capacity, block.shape_.groups(), block.shape_.head_size, r.cached(),
                    r.device),
      config_(block.config_.blocks(r.options.k)),
      groups_(block.shape_.groups()),
      levels_(config_.level(std::max(r.capacity, block.shape_.max_positions) / config_.block) + 1),
      value_sums_(part("value_sums", {r.batch, groups_, block.shape_.head_size}, Dtype::f64)),
      counts_(part("block_counts", {r.batch, groups_, 1}, Dtype::i32)),
      entries_(part(
          "block_entries",
          {r.batch, groups_, 1,
           config_.most_kept(std::max(r.capacity, block.shape_.max_positions) / config_.block + 1)},
          Dtype::i32)) {
  const int64_t d = block.shape_.head_size, m = block.config_.prior_features;
  for (int64_t z = 0; z < levels_; ++z) {
    means_.push_back(&rows_of_level("mean_keys", z, config_.parts, d, r));
    logs_.push_back(&rows_of_level("mean_key_logs", z, config_.parts, 0, r));
    if (!block.prior_) continue;
    sums_.push_back(&rows_of_level("feature_sums", z, 1, m, r));
    open_.push_back(&part(join("open_feature_sums_", z), {r.batch, groups_, m}, Dtype::f64));
  }
}

Tensor& BlockState::rows_of_level(const std::string& name, int64_t z, int64_t parts, int64_t width,
                                  const nn::StateRequest& r) {
  const int64_t keys = config_.block << z;
  auto rows = [keys, parts](int64_t tokens) { return tokens / keys * parts; };
  Shape shape{r.batch, groups_, rows(r.capacity)};
  if (width > 0) shape.push_back(width);
  return part(join(name, "_", z), shape, r.dtype, 2, rows);
}

void BlockState::fill_sums(int64_t first, const Tensor& x) {
  const int64_t B = x.dim(0), T = x.dim(2);
  const Tensor lengths = this->lengths().slice(0, first, B);
  for (size_t z = 0; z < sums_.size(); ++z) {
    const int64_t keys = config_.block << z, blocks = (T + keys - 1) / keys;
    const Tensor units = Tensor::full({B}, double(keys), Dtype::i64);
    const Tensor whole = sum_units(x, lengths, units, T / keys, x.dtype());
    if (T >= keys) copy_into(sums_[z]->slice(0, first, B).slice(2, 0, T / keys), whole);
    const Tensor all = sum_units(x, lengths, units, blocks, Dtype::f64);
    for (int64_t b = 0; b < B; ++b) {
      copy_into(open_[z]->slice(0, first + b, 1), all.slice(0, b, 1)
                                                      .slice(2, (length(first + b) - 1) / keys, 1)
                                                      .contiguous()
                                                      .view({1, groups_, x.dim(3)}));
    }
  }
}

void BlockState::fill(int64_t first, const Tensor& k, const Tensor& v, std::vector<KeyParts> parts,
                      const Tensor& psi_k, const Visibility& visible, const BlockMask& mask) {
  KeyValueState::fill(first, k, v, visible.lengths);
  const int64_t B = k.dim(0), T = k.dim(2), room = std::min(mask.capacity(), entries_.dim(3));
  // Of the keys as the cache has them, as when a block is filled token by token.
  if (keys.dtype() != k.dtype()) {
    parts = block_parts_by_level(k.detach().to(keys.dtype()).to(k.dtype()), config_, 1);
  }
  for (size_t z = 0; z < means_.size(); ++z) {
    if (z == parts.size()) parts.push_back(parts_of_pairs(parts.back(), config_.parts));
    const int64_t rows = parts[z].means.dim(2);
    if (rows == 0) break;
    copy_into(means_[z]->slice(0, first, B).slice(2, 0, rows), parts[z].means);
    copy_into(logs_[z]->slice(0, first, B).slice(2, 0, rows), parts[z].logs);
  }
  if (!sums_.empty()) fill_sums(first, psi_k.detach());
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

// The parts of the blocks and super-blocks that a sequence's newest token completes.
void BlockState::append_parts(int64_t b) {
  const int64_t tokens = length(b), P = config_.parts;
  for (size_t z = 0; z < means_.size() && tokens % (config_.block << z) == 0; ++z) {
    const int64_t size = z == 0 ? config_.block : 2 * P;
    const int64_t at = tokens / (config_.block << z) - 1;  // of its level
    auto last = [&](const Tensor& x) {
      return x.slice(0, b, 1).slice(2, at * size, size).contiguous();
    };
    const KeyParts parts = z == 0 ? block_parts(last(keys).to(means_[z]->dtype()), {}, size, P)
                                  : parts_of_pairs({last(*means_[z - 1]), last(*logs_[z - 1])}, P);
    copy_into(means_[z]->slice(0, b, 1).slice(2, at * P, P), parts.means);
    copy_into(logs_[z]->slice(0, b, 1).slice(2, at * P, P), parts.logs);
  }
}

void BlockState::append(const Tensor& k, const Tensor& v, const Tensor& psi_k) {
  const Tensor at = lengths().clone();
  KeyValueState::append(k, v);
  for (int64_t b = 0; b < batch(); ++b) append_parts(b);
  for (size_t z = 0; z < sums_.size(); ++z) {
    append_to_blocks(*sums_[z], *open_[z], psi_k, at, config_.block << z);
  }
}

BlockScores BlockState::scores() const {
  BlockScores s;
  for (size_t z = 0; z < means_.size(); ++z) s.key_parts.push_back({*means_[z], *logs_[z]});
  for (const Tensor* level : sums_) s.psi_sums.push_back(*level);
  if (!open_.empty()) s.psi_k = *open_[0];
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
  const Tensor psi_k = prior_ ? prior_->get().key(in.k, in.k_content, {}) : Tensor();
  state.append(in.k, in.v, psi_k);
  BlockScores scores = state.scores();
  scores.q = in.q.detach().contiguous();
  scores.gain = mean_gain_.gain.value;
  if (prior_) {
    scores.psi_q = prior_->get().query(in.q, in.q_content, {});
    scores.prior_gain = prior_gain_->get().gain.value;
    scores.least_share = config_.least_share();
  }
  const BlockMask mask = state.mask();
  select_blocks_step(mask, scores, config_.blocks(in.options.k), state.lengths());
  const Tensor attended =
      block_attention_step(in.q, state.keys, state.values, mask, state.lengths());
  const Tensor average = running_mean_step(state.value_sums_, in.v, state.lengths());
  const Tensor gates = gates_of_heads(gates_, in.q.dim(0), 1);
  if (in.tap) in.tap->put("gates", gates);
  return mix_outputs(attended, average, gates, {.causal = false, .lengths = state.lengths()});
}

}  // namespace brine::sea
