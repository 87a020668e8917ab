// The choice of key blocks: checked functions over their kernels, and masks of blocks by keys.
#include <cmath>
#include <numeric>

#include "autograd/ops.h"
#include "autograd/ops_blocks.h"
#include "autograd/ops_primitives.h"
#include "tensor/base/stored.h"
#include "tensor/functions/key_lists.h"
#include "tensor/kernels/blocks.h"
#include "tensor/mask/csr.h"
#include "tensor/meter/cost_meter.h"

namespace brine {
namespace {

void check_rows(const char* op, const char* name, const Tensor& rows, const Shape& shape,
                Dtype dtype) {
  check(rows.shape() == shape && rows.dtype() == dtype, op, ": ", name, " must be ", dtype, " ",
        shape, ", got ", rows.dtype(), " ", rows.shape());
}

// Throws unless the scores fit together; `last_block` is the block of the last row.
void check_scores(const char* op, const BlockScores& s, const BlockConfig& config, int64_t G,
                  int64_t last_block) {
  check_blocks(op, config);
  const Tensor& q = s.q;
  check(q.rank() == 4 && G >= 1 && q.dim(1) % G == 0 && q.dim(3) > 0 &&
            (q.dtype() == Dtype::f32 || q.dtype() == Dtype::f64),
        op, ": q must be f32 or f64 [B, H, rows, d] of ", G, " groups, got ", q.dtype(), " ",
        q.shape());
  if (config.chosen == 0) return;  // a window
  const int64_t B = q.dim(0), d = q.dim(3);
  check_rows(op, "key_scale", s.key_scale, {G, d}, q.dtype());
  const int64_t blocks = s.keys.steps.rank() == 4 ? s.keys.steps.dim(2) : 0;
  const int levels = config.level(last_block) + 1;
  check(int(s.keys.moments.size()) >= levels && blocks >= last_block, op, ": ", last_block,
        " blocks need copies of their keys and moments of ", levels, " levels, got ", blocks,
        " blocks and ", s.keys.moments.size(), " levels");
  const Dtype stored = s.keys.steps.dtype();
  check(can_store(q.dtype(), stored), op, ": steps of ", stored, " for queries of ", q.dtype());
  check_rows(op, "steps", s.keys.steps, {B, G, blocks, config.block}, stored);
  check_rows(op, "codes", s.keys.codes, {B, G, blocks, config.block, (d + 1) / 2}, Dtype::u8);
  for (const Tensor& level : s.keys.moments)
    check_rows(op, "moments", level, {B, G, level.dim(2), 2 * d}, stored);
}

void check_numbers(const char* op, const Tensor& nan_count) {
  if (nan_count.device().is_meta()) return;
  const int64_t nans = nan_count.to(Device{}).data<int64_t>()[0];
  check(nans == 0, op, ": scores are not finite: a query or key is NaN");
}

// Products of rows of q with the moments of their first pass and the copies of candidates.
double choosing_macs(const Tensor& q, const BlockConfig& config, int64_t blocks) {
  const double all = double(blocks) / 2, first = std::min(double(config.columns), 2 * all);
  return double(q.numel()) *
         (first + std::min(all, double(config.candidates)) * double(config.block));
}

}  // namespace

void check_blocks(const char* op, const BlockConfig& c) {
  check(c.block >= 1 && c.chosen >= 0 && c.sinks >= 0 && c.local >= 0 && c.columns >= 1, op,
        ": block and columns must be at least 1, chosen, sinks and local at least 0");
  check(c.tile >= 1 && c.tile <= kMaxTileRows && c.block % c.tile == 0, op, ": tile = ", c.tile,
        " must divide block = ", c.block, " and be at most ", kMaxTileRows, "; ",
        std::gcd(c.tile, c.block), " does");
  check(c.candidates >= c.chosen, op, ": candidates = ", c.candidates, " is less than the ",
        c.chosen, " blocks that a row chooses; it must be at least ", c.chosen);
}

KeyCodes key_codes(const Tensor& keys, const Tensor& key_scale, const BlockConfig& config,
                   int levels, std::optional<Dtype> stored) {
  const char* op = "key_codes";
  check_blocks(op, config);
  check(keys.rank() == 4 && keys.dim(3) > 0 &&
            (keys.dtype() == Dtype::f32 || keys.dtype() == Dtype::f64),
        op, ": keys must be f32 or f64 [B, G, T, d], got ", keys.dtype(), " ", keys.shape());
  const int64_t B = keys.dim(0), G = keys.dim(1), d = keys.dim(3), N = keys.dim(2) / config.block;
  check_rows(op, "key_scale", key_scale, {G, d}, keys.dtype());
  const Dtype type = keys.dtype();
  check(can_store(type, stored.value_or(type)), op, ": ", type, " stored in ", *stored);
  const Device device = keys.device();
  KeyCodes out{.codes = Tensor::empty({B, G, N, config.block, (d + 1) / 2}, Dtype::u8, device),
               .steps = Tensor::empty({B, G, N, config.block}, type, device),
               .moments = {Tensor::empty({B, G, N, 2 * d}, type, device)}};
  if (out.steps.numel() > 0) {
    BRINE_CALL(keys, key_codes, out, keys.detach().contiguous(), key_scale.detach().contiguous(),
               config.block, stored.value_or(type));
  }
  while (int(out.moments.size()) < levels) {
    out.moments.push_back(moments_of_pairs(out.moments.back()));
  }
  return out;
}

Tensor moments_of_pairs(const Tensor& halves) {
  NoGrad off;
  const int64_t B = halves.dim(0), G = halves.dim(1), n = halves.dim(2) / 2, d = halves.dim(3) / 2;
  auto part = [&](int64_t side, int64_t first) {
    const Tensor pairs = slice(halves, 2, 0, 2 * n).contiguous().view({B, G, n, 2, 2 * d});
    return slice(slice(pairs, 3, side, 1), 4, first, d).contiguous().view({B, G, n, d});
  };
  const Tensor low = part(0, 0), high = part(1, 0), s = part(0, d), t = part(1, d);
  const Tensor mean = scale(add(low, high), 0.5), away = scale(sub(low, high), 0.5);
  const Tensor squares = scale(add(mul(s, s), mul(t, t)), 0.5);
  return concat({mean, sqrt(add(squares, mul(away, away)))}, 3);
}

Tensor calibrated_key_scale(const Tensor& keys, const Tensor& lengths, int64_t block) {
  const char* op = "calibrated_key_scale";
  check(keys.rank() == 4 && block >= 1, op, ": keys must be [B, G, T, d], got ", keys.shape());
  const int64_t B = keys.dim(0), G = keys.dim(1), T = keys.dim(2), d = keys.dim(3);
  const Tensor k = keys.detach().to(Device{}).to(Dtype::f64).contiguous();
  std::vector<double> squares(size_t(G * d), 0.0), mean(size_t(d), 0.0);
  int64_t count = 0;
  for (int64_t b = 0; b < B; ++b) {
    const int64_t length = lengths.defined() ? lengths.data<int64_t>()[b] : T;
    for (int64_t first = 0; first + block <= length; first += block) {
      count += block;
      for (int64_t g = 0; g < G; ++g) {
        const double* row = k.data<double>() + ((b * G + g) * T + first) * d;
        std::fill(mean.begin(), mean.end(), 0.0);
        for (int64_t i = 0; i < block * d; ++i) mean[size_t(i % d)] += row[i] / double(block);
        for (int64_t i = 0; i < block * d; ++i) {
          const double away = row[i] - mean[size_t(i % d)];
          squares[size_t(g * d + i % d)] += away * away;
        }
      }
    }
  }
  for (double& x : squares) {
    check(std::isfinite(x), op, ": a key is not a finite number");
    x = x > 0 ? std::sqrt(std::sqrt(x / double(count))) : 1;
  }
  return Tensor::from(squares, {G, d}).to(keys.dtype()).to(keys.device());
}

BlockMask empty_block_mask(const BlockConfig& config, int64_t B, int64_t G, int64_t tiles,
                           int64_t blocks, Device device) {
  BlockMask mask;
  mask.counts = Tensor::zeros({B, G, tiles}, Dtype::i32, device);
  // Zeros: a saved state holds all of it.
  mask.entries = Tensor::zeros({B, G, tiles, config.max_kept(blocks)}, Dtype::i32, device);
  mask.block = config.block;
  mask.tile = config.tile;
  return mask;
}

BlockMask select_blocks(const BlockScores& scores, const BlockConfig& config,
                        const Visibility& visible, int64_t T, const Tensor& tiles) {
  const char* op = "select_blocks";
  const bool shares = scores.shares.defined();
  const Tensor& q = shares ? scores.shares : scores.q;
  const int64_t last_block = T > 0 ? (T - 1) / config.block : 0, R = config.tile;
  const int64_t G = scores.groups;
  check(visible.causal, op, ": blocks are for causal attention");
  check_visibility(op, visible, q.dim(0), T);
  if (shares) {
    check_blocks(op, config);
    check(q.rank() == 4 && G >= 1 && q.dim(1) % G == 0 && q.dim(3) >= last_block, op,
          ": shares must be [B, H, rows, ", last_block, "] of ", G, " groups, got ", q.shape());
  } else {
    check_scores(op, scores, config, G, last_block);
  }
  const int64_t count = (q.dim(2) + R - 1) / R;
  check(tiles.defined() ? tiles.shape() == Shape{count} && tiles.dtype() == Dtype::i32
                        : q.dim(2) == T,
        op, ": ", q.dim(2), " rows of ", T, " tokens need their tiles, i32 [", count, "]");
  BlockMask mask = empty_block_mask(config, q.dim(0), G, count, last_block + 1, q.device());
  mask.tiles = tiles;
  if (!shares && config.chosen > 0) count_macs(choosing_macs(q, config, last_block));
  BlockScores whole = scores;
  for (Tensor* t : {&whole.q, &whole.key_scale, &whole.shares}) {
    if (t->defined()) *t = t->detach().contiguous();
  }
  const Tensor nan_count = Tensor::zeros({1}, Dtype::i64, q.device());
  BRINE_CALL(q, select_blocks, mask, nan_count, whole, config, visible);
  if (!shares && config.chosen > 0) check_numbers(op, nan_count);
  return mask;
}

void select_blocks_step(const BlockMask& mask, const BlockScores& scores, const BlockConfig& config,
                        const Tensor& width) {
  const char* op = "select_blocks_step";
  int64_t max_width = 0;
  for (int64_t b = 0; b < width.numel(); ++b)
    max_width = std::max(max_width, width.data<int64_t>()[b]);
  check_scores(op, scores, config, mask.counts.dim(1),
               max_width > 0 ? (max_width - 1) / config.block : 0);
  check(scores.q.dim(2) == 1 && width.shape() == Shape{scores.q.dim(0)} && mask.tile_count() == 1,
        op, ": one row of every sequence, got q ", scores.q.shape());
  const int64_t max_kept = config.max_kept((max_width + config.block - 1) / config.block);
  check(mask.capacity() >= max_kept, op, ": k grew: the state has room for ", mask.capacity(),
        " blocks, not for ", max_kept);
  BlockScores whole = scores;
  if (!scores.q.device().is_cpu() && config.chosen > 0) {  // its kernels read steps as q is
    whole.keys.steps = whole.keys.steps.to(scores.q.dtype());
    for (Tensor& level : whole.keys.moments) level = level.to(scores.q.dtype());
  }
  const Tensor nan_count = Tensor::zeros({1}, Dtype::i64, scores.q.device());
  BRINE_CALL(scores.q, select_blocks_step, mask, nan_count, whole, config, width);
  if (scores.q.device().is_cpu()) check_numbers(op, nan_count);  // a step does not wait for a GPU
}

namespace {

// The lists on the CPU.
BlockMask readable(const BlockMask& mask) {
  BlockMask out = mask;
  out.counts = mask.counts.to(Device{});
  out.entries = mask.entries.to(Device{});
  return out;
}

// f(first key, key after the last) for the blocks that row t of group bg = b G + g keeps. Returns
// whether the row sees a key.
template <class F>
bool each_run(const BlockMask& mask, const RowWidths& widths, int64_t bg, int64_t t, F f) {
  if (t >= widths.valid(bg / mask.counts.dim(1))) return false;
  const int64_t tile = bg * mask.tile_count() + t / mask.tile;
  const int32_t* entries = mask.entries.data<int32_t>() + tile * mask.capacity();
  for (int64_t e = 0; e < mask.counts.data<int32_t>()[tile]; ++e) {
    if (entry_row(entries[e]) > t % mask.tile) continue;
    const int64_t first = entry_block(entries[e]) * mask.block;
    f(first, std::min(first + mask.block, t + 1));
  }
  return true;
}

}  // namespace

FlatCsr blocks_to_csr(const BlockMask& any, int64_t heads, const Visibility& visible, int64_t T) {
  check(!any.tiles.defined(), "blocks_to_csr: the mask must have all tiles");
  check(heads <= INT32_MAX / std::max<int64_t>(T, 1), "blocks_to_csr: ", heads, " heads of ", T,
        " keys are more columns than 32 bits have");
  const BlockMask mask = readable(any);
  const int64_t B = mask.counts.dim(0), G = mask.counts.dim(1), group = heads / G;
  const RowWidths widths(visible, T);
  return key_lists({.batch = B, .heads = heads, .rows = T, .keys = T}, any.counts.device(),
                   [&](int64_t b, int64_t h, int64_t t, std::vector<int32_t>& keys) {
                     each_run(mask, widths, b * G + h / group, t, [&](int64_t first, int64_t end) {
                       for (int64_t j = first; j < end; ++j) keys.push_back(int32_t(j));
                     });
                   });
}

double kept_keys(const BlockMask& any, const Visibility& visible, int64_t T) {
  const BlockMask mask = readable(any);
  const RowWidths widths(visible, T);
  double keys = 0, rows = 0;
  for (int64_t bg = 0; bg < mask.counts.dim(0) * mask.counts.dim(1); ++bg) {
    for (int64_t t = 0; t < T; ++t) {
      rows += each_run(mask, widths, bg, t,
                       [&](int64_t first, int64_t end) { keys += double(end - first); });
    }
  }
  return keys / std::max(rows, 1.0);
}

}  // namespace brine
