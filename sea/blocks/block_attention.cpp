// The mask of key blocks: a pass over whole sequences, and the scores that the estimate's loss
// needs.
#include "sea/blocks/block_attention.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "autograd/ops.h"
#include "autograd/ops_blocks.h"
#include "autograd/ops_units.h"
#include "nn/attention/block_lists.h"
#include "sea/base/mask.h"
#include "tensor/meter/cost_meter.h"

namespace brine::sea {
namespace {

// The score of a block that a row does not have: exp() of it is 0 next to any real one.
constexpr double kNoBlock = -1e4;

Tensor all_lengths(const Tensor& lengths, int64_t B, int64_t T) {
  return lengths.defined() ? lengths : Tensor::full({B}, double(T), Dtype::i64);
}

// The rows of tiles, i64 [n].
Tensor rows_of(const Tensor& tiles, int64_t R) {
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < tiles.numel(); ++i) {
    for (int64_t r = 0; r < R; ++r) rows.push_back(tiles.data<int32_t>()[i] * R + r);
  }
  return Tensor::from(rows, {int64_t(rows.size())});
}

// x [B, H, T, m] -> [B, H, n, m].
Tensor take_rows(const Tensor& x, const Tensor& rows) {
  return x.defined() ? gather(x, 2, rows.view({1, 1, rows.numel(), 1})) : x;
}

// x [B, G, T, m] with 0 at padding.
Tensor without_padding(const Tensor& x, const Tensor& lengths) {
  if (!lengths.defined()) return x;
  const int64_t B = x.dim(0), G = x.dim(1);
  std::vector<int64_t> each;
  for (int64_t i = 0; i < B * G; ++i) each.push_back(lengths.data<int64_t>()[i / G]);
  const Tensor flat = reshape(x, {B * G, x.dim(2), x.dim(3)});
  return reshape(zero_padding(flat, Tensor::from(each, {B * G})), x.shape());
}

// Sums of x [B, G, T, m] by whole blocks of `keys` rows, differentiable.
Tensor sums_by(const Tensor& x, int64_t keys, int64_t blocks) {
  const int64_t B = x.dim(0), G = x.dim(1), m = x.dim(3);
  return sum(reshape(slice(x, 2, 0, blocks * keys), {B, G, blocks, keys, m}), {3});
}

// log sum exp over the last axis of x, which is dropped.
Tensor log_sum_exp_last(const Tensor& x) {
  const int axis = x.rank() - 1;
  const Tensor most = max(x.detach(), {axis}, true);
  const Tensor sums = log(sum(exp(sub(x, most)), {axis}));
  return add(sums, reshape(most, sums.shape()));
}

// Tiles to sample: of those whose rows all sequences have, without repetition, in ascending order.
Tensor sampled_tiles(const nn::AttentionInput::Sample& sample, int64_t tiles, int64_t R) {
  const int64_t count = std::min(tiles, (sample.rows + R - 1) / R);
  std::vector<int32_t> all;
  for (int64_t i = 0; i < tiles; ++i) all.push_back(int32_t(i));
  const RandomSlice random{.seed = sample.seed, .stream = 11};
  for (int64_t i = 0; i < count; ++i) {
    const int64_t next = i + int64_t(random.word(uint64_t(i)) % uint64_t(tiles - i));
    std::swap(all[size_t(i)], all[size_t(next)]);
  }
  all.resize(size_t(count));
  std::sort(all.begin(), all.end());
  return Tensor::from(all, {count});
}

// Sums of psi [B, G, T, m] over complete blocks, by level.
std::vector<Tensor> feature_sums(const Tensor& psi, int64_t block, int levels,
                                 const Tensor& lengths) {
  const int64_t B = psi.dim(0), T = psi.dim(2);
  std::vector<Tensor> sums;
  for (int z = 0; z < levels; ++z) {
    const int64_t keys = block << z;
    sums.push_back(sum_units(psi, all_lengths(lengths, B, T),
                             Tensor::full({B}, double(keys), Dtype::i64), T / keys, psi.dtype()));
  }
  return sums;
}

int64_t least_length(const Tensor& lengths, int64_t T) {
  int64_t least = T;
  for (int64_t b = 0; lengths.defined() && b < lengths.numel(); ++b) {
    least = std::min(least, lengths.data<int64_t>()[b]);
  }
  return least;
}

}  // namespace

BlockAttention::BlockAttention(nn::Init& init, const nn::AttentionShape& shape,
                               const SeaConfig& config)
    : config_((config.validate(shape), config)),
      shape_(shape),
      gates_(parameter("gates", init.full({shape.heads, 2}, config.gate_bias), false)),
      prior_gain_(config.prior == Prior::learned
                      ? std::optional(std::ref(child<HeadGain>("prior", init, "gain", shape.heads)))
                      : std::nullopt),
      mean_gain_(child<HeadGain>("prior", init, "pooled_gain", shape.heads)) {
  if (config.prior == Prior::learned)
    prior_ = child<PriorPair>("prior", init, shape, config.prior_features);
}

nn::AttentionTraits BlockAttention::traits() const {
  return {.causal = true,
          .bidirectional = false,
          .linear = true,
          .sparse = true,
          .incremental = true,
          .groups = true,
          .estimates = true,
          .samples = true,
          .k_step = config_.block,
          .reads_hidden = false,
          .reads_content = prior_ && prior_->get().query.content};
}

Tensor BlockAttention::forward(const nn::AttentionInput& in) {
  const int64_t B = in.q.dim(0), T = in.q.dim(2);
  const BlockConfig config = config_.blocks(in.options.k);
  check(!(in.tap && in.tap->forced("selected").defined()),
        "sea: a mask of blocks takes no forced columns");
  const Tensor& lengths = in.visible.lengths;
  Tensor tiles;  // sampled ones
  const int64_t whole = least_length(lengths, T) / config.tile;
  if (in.sample.rows > 0 && whole * config.tile > in.sample.rows) {
    tiles = sampled_tiles(in.sample, whole, config.tile);
  }
  const bool only = in.sample.only && tiles.defined();
  const Tensor rows = tiles.defined() ? rows_of(tiles, config.tile) : Tensor();
  auto taken = [&](const Tensor& x) { return only ? take_rows(x, rows) : x; };
  const Tensor q = taken(in.q);
  std::optional<CostScope> part(std::in_place, "estimator");
  Tensor psi_k;
  BlockScores scores{.q = q, .gain = mean_gain_.gain.value};
  const bool shows = in.tap && in.tap->requested("scores");
  if (prior_) {
    // Scores that are shown learn from it.
    std::optional<NoGrad> off;
    if (!shows) off.emplace();
    psi_k = prior_->get().key(in.k, in.k_content, lengths);
  }
  const int levels = config.level(std::max<int64_t>(T - 1, 0) / config.block) + 1;
  {
    NoGrad off;
    scores.key_parts = block_parts_by_level(in.k, config, levels);
    if (prior_) {
      scores.psi_q = prior_->get().query(q, taken(in.q_content), only ? Tensor() : lengths);
      scores.psi_k = psi_k.detach();
      scores.psi_sums = feature_sums(scores.psi_k, config.block, levels, lengths);
      scores.prior_gain = prior_gain_->get().gain.value;
      scores.least_share = config_.least_share();
    }
  }
  part.emplace("mask");
  const Visibility visible = in.visible;
  const BlockMask mask = select_blocks(scores, config, visible, T, only ? tiles : Tensor());
  if (in.state) {
    dynamic_cast<BlockState&>(*in.state).fill(in.slot, in.k, in.v, scores.key_parts, psi_k, visible,
                                              mask);
  }
  part.emplace("sparse attention");
  const Tensor attended = nn::attend_blocks(in, q, mask, config);
  part.emplace("output");
  const Tensor average = taken(average_values({}, in.v, visible));
  const Tensor gates = gates_of_heads(gates_, B, q.dim(2));
  if (in.tap) {
    in.tap->put("gates", gates);
    if (only) in.tap->put("rows", rows);
    if (shows) show_scores(in, tiles, scores.key_parts, psi_k);
    // A mask by keys is larger than anything else here: those who ask for other entries alone do
    // not get it.
    const bool counts = in.tap->requested("kept_keys");
    const bool keys = in.tap->requested("mask") || (!shows && !counts);
    if (!only && (keys || counts)) nn::show_blocks(in, mask, keys);
  }
  return mix_outputs(attended, average, gates, only ? Visibility{.causal = true} : visible);
}

// The scores of `tiles` (undefined: all), by the level that their rows begin at.
void BlockAttention::show_scores(const nn::AttentionInput& in, const Tensor& tiles,
                                 const std::vector<KeyParts>& parts, const Tensor& psi_k) const {
  const BlockConfig config = config_.blocks(in.options.k);
  const int64_t T = in.k.dim(2), d = shape_.head_size, R = config.tile, H = shape_.heads;
  const Device device = in.q.device();
  const Dtype type = in.q.dtype();
  in.tap->put("block_sizes",
              Tensor::from(std::vector<int64_t>{config.block, R, config.columns}, {3}));
  std::map<int, std::vector<int32_t>> by_level;
  const int64_t count = tiles.defined() ? tiles.numel() : (T + R - 1) / R;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t place = tiles.defined() ? tiles.data<int32_t>()[i] : int32_t(i);
    const int64_t own = place * R / config.block;
    if (own > 0) by_level[config.level(own)].push_back(place);
  }
  const Tensor keys = config.parts == 1 ? without_padding(in.k, in.visible.lengths) : Tensor();
  const Tensor totals = prior_ ? cumsum(psi_k, 2) : Tensor();
  for (const auto& [z, places] : by_level) {
    std::vector<int64_t> rows;
    std::vector<double> widths, blocks;
    for (const int32_t place : places) {
      for (int64_t t = place * R; t < std::min(T, (place + 1) * R); ++t) {
        rows.push_back(t);
        widths.push_back(double(t + 1) / double(config.block << z));
        blocks.push_back(double((t / config.block) >> z));
      }
    }
    const int64_t n = int64_t(rows.size()), N = int64_t(blocks.back());
    const Tensor index = Tensor::from(rows, {n});
    auto column = [&](const std::vector<double>& values) {
      return Tensor::from(values, {1, 1, n, 1}).to(type).to(device);
    };
    const int64_t P = config.parts, size = config.block << z;
    // One mean is differentiated. Of clusters the keys are not: which of them a part has changes.
    const Tensor means = P == 1 ? scale(sums_by(keys, size, N), 1 / double(size))
                                : parts[size_t(z)].means.slice(2, 0, N * P).contiguous();
    Tensor s =
        mul(group_matmul(take_rows(in.q, index), scale(means, 1 / std::sqrt(double(d))), true),
            reshape(mean_gain_.gain, {1, H, 1, 1}));
    if (P > 1) {
      const Tensor logs = parts[size_t(z)].logs.slice(2, 0, N * P).contiguous();
      const int64_t B = logs.dim(0), G = logs.dim(1);
      s = add(reshape(s, {B, G, H / G, n, N * P}), logs.view({B, G, 1, 1, N * P}));
      s = log_sum_exp_last(reshape(s, {B, H, n, N, P}));
    }
    if (prior_) {
      const Tensor psi_q =
          prior_->get().query(take_rows(in.q, index), take_rows(in.q_content, index), {});
      const Tensor x = group_matmul(psi_q, sums_by(psi_k, config.block << z, N), true);
      const Tensor total =
          sum(mul(psi_q, repeat_heads(take_rows(totals, index), H / shape_.groups())), {3}, true);
      const Tensor share = clamp(div(x, total), config_.least_share(), 1e30);
      s = add(s,
              mul(log(mul(share, column(widths))), reshape(prior_gain_->get().gain, {1, H, 1, 1})));
    }
    const Tensor has = less(arange(N, type, device).view({1, 1, 1, N}), column(blocks));
    in.tap->put(join("block_scores_", z), where(has, s, kNoBlock));
    in.tap->put(join("block_rows_", z), index);
    in.tap->put(join("block_tiles_", z), Tensor::from(places, {int64_t(places.size())}));
  }
}

}  // namespace brine::sea
