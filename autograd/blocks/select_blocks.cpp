// The choice of key blocks: checked functions over their kernels, and masks of blocks by keys.
#include <cmath>

#include "autograd/compute_type.h"
#include "autograd/ops_blocks.h"
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
  const Shape heads{q.dim(1)};
  check(s.gain.shape() == heads && s.gain.dtype() == q.dtype(), op, ": gain must be ", heads);
  const int levels = config.level(last_block) + 1;
  const int64_t blocks = s.key_parts.empty() ? 0 : s.key_parts[0].means.dim(2) / config.parts;
  check(int(s.key_parts.size()) >= levels && blocks >= last_block, op, ": ", last_block,
        " blocks of ", config.parts, " parts need mean keys of ", levels, " levels, got ",
        s.key_parts.size(), " of ", blocks, " blocks");
  for (const KeyParts& level : s.key_parts) {
    const int64_t B = q.dim(0), n = level.means.dim(2);
    check_rows(op, "mean keys", level.means, {B, G, n, q.dim(3)}, q.dtype());
    check_rows(op, "logarithms of numbers of keys", level.logs, {B, G, n}, q.dtype());
  }
  if (!s.psi_q.defined()) return;
  check(s.psi_q.rank() == 4 && s.psi_q.dim(2) == q.dim(2) && s.prior_gain.shape() == heads &&
            s.psi_sums.size() == s.key_parts.size() && s.psi_k.defined(),
        op, ": features must be [B, H, rows, m] with a gain and sums for each level");
  for (const Tensor& level : s.psi_sums) {
    check_rows(op, "sums of features", level, {q.dim(0), G, level.dim(2), s.psi_q.dim(3)},
               q.dtype());
  }
}

}  // namespace

void check_blocks(const char* op, const BlockConfig& c) {
  check(c.block >= 1 && c.chosen >= 1 && c.sinks >= 0 && c.local >= 0 && c.columns >= 1 &&
            c.survivors >= 1,
        op,
        ": block, chosen, columns and survivors must be at least 1, sinks and local at least 0");
  check(c.tile >= 1 && c.tile <= kMostTileRows && c.block % c.tile == 0, op, ": a tile of ", c.tile,
        " rows must divide a block of ", c.block, " keys, and have at most ", kMostTileRows);
  check(c.parts >= 1 && c.parts <= c.block, op, ": ", c.parts, " parts of a block of ", c.block,
        " keys");
  check(c.opinion >= 0 && c.opinion <= 1, op, ": opinion is ", c.opinion, ", must be in [0, 1]");
}

KeyParts block_parts(const Tensor& x, const Tensor& x_logs, int64_t size, int64_t parts) {
  const char* op = "block_parts";
  check(x.rank() == 4 && x.dim(3) > 0 && (x.dtype() == Dtype::f32 || x.dtype() == Dtype::f64), op,
        ": x must be f32 or f64 [B, G, T, d], got ", x.dtype(), " ", x.shape());
  check(size >= 1 && parts >= 1 && parts <= size, op, ": ", parts, " parts of ", size, " rows");
  const Shape rows{x.dim(0), x.dim(1), x.dim(2)};
  check(!x_logs.defined() || (x_logs.shape() == rows && x_logs.dtype() == x.dtype()), op,
        ": logarithms must be ", x.dtype(), " ", rows);
  const int64_t count = x.dim(2) / size * parts;
  const KeyParts out{Tensor::empty({x.dim(0), x.dim(1), count, x.dim(3)}, x.dtype(), x.device()),
                     Tensor::empty({x.dim(0), x.dim(1), count}, x.dtype(), x.device())};
  if (count == 0 || x.numel() == 0) return out;
  count_macs(double(x.numel()) * double(parts));
  BRINE_CALL(x, block_parts, out.means, out.logs, x.detach().contiguous(),
             x_logs.defined() ? x_logs.contiguous() : x_logs, size, parts);
  return out;
}

KeyParts parts_of_pairs(const KeyParts& blocks, int64_t parts) {
  return block_parts(blocks.means, blocks.logs, 2 * parts, parts);
}

std::vector<KeyParts> block_parts_by_level(const Tensor& keys, const BlockConfig& config,
                                           int levels) {
  std::vector<KeyParts> out{block_parts(keys, {}, config.block, config.parts)};
  while (int(out.size()) < levels) out.push_back(parts_of_pairs(out.back(), config.parts));
  return out;
}

BlockMask empty_block_mask(const BlockConfig& config, int64_t B, int64_t G, int64_t tiles,
                           int64_t blocks, Device device) {
  BlockMask mask;
  mask.counts = Tensor::zeros({B, G, tiles}, Dtype::i32, device);
  mask.entries = Tensor::empty({B, G, tiles, config.most_kept(blocks)}, Dtype::i32, device);
  mask.block = config.block;
  mask.tile = config.tile;
  return mask;
}

BlockMask select_blocks(const BlockScores& scores, const BlockConfig& config,
                        const Visibility& visible, int64_t T, const Tensor& tiles) {
  const char* op = "select_blocks";
  const bool shares = scores.shares.defined();
  const Tensor& q = shares ? scores.shares : scores.q;
  const int64_t G = shares                     ? scores.psi_k.dim(1)
                    : scores.key_parts.empty() ? 0
                                               : scores.key_parts[0].means.dim(1);
  const int64_t last_block = T > 0 ? (T - 1) / config.block : 0, R = config.tile;
  check(visible.causal, op, ": blocks are for causal attention");
  check_visibility(op, visible, q.dim(0), T);
  if (shares) {
    check_blocks(op, config);
    check(q.rank() == 4 && q.dim(1) % G == 0 && q.dim(3) >= last_block, op,
          ": shares must be [B, H, rows, ", last_block, "], got ", q.shape());
  } else {
    check_scores(op, scores, config, G, last_block);
  }
  const int64_t count = (q.dim(2) + R - 1) / R;
  check(tiles.defined() ? tiles.shape() == Shape{count} && tiles.dtype() == Dtype::i32
                        : q.dim(2) == T,
        op, ": ", q.dim(2), " rows of ", T, " tokens need their tiles, i32 [", count, "]");
  BlockMask mask = empty_block_mask(config, q.dim(0), G, count, last_block + 1, q.device());
  mask.tiles = tiles;
  if (!shares) {  // each row with the blocks of its first level
    count_macs(double(q.numel()) *
               double(std::min(config.columns, std::max<int64_t>(last_block, 1)) / 2 + 1) *
               double(config.parts + (scores.psi_q.defined() ? 1 : 0)));
  }
  BlockScores whole = scores;
  whole.half = has_16_bits(compute_type());
  for (Tensor* t :
       {&whole.q, &whole.gain, &whole.psi_q, &whole.prior_gain, &whole.psi_k, &whole.shares}) {
    if (t->defined()) *t = t->detach().contiguous();
  }
  BRINE_CALL(q, select_blocks, mask, whole, config, visible);
  return mask;
}

void select_blocks_step(const BlockMask& mask, const BlockScores& scores, const BlockConfig& config,
                        const Tensor& width) {
  const int64_t G = mask.counts.dim(1);
  int64_t max_width = 0;
  for (int64_t b = 0; b < width.numel(); ++b)
    max_width = std::max(max_width, width.data<int64_t>()[b]);
  check_scores("select_blocks_step", scores, config, G,
               max_width > 0 ? (max_width - 1) / config.block : 0);
  check(scores.q.dim(2) == 1 && width.shape() == Shape{scores.q.dim(0)} && mask.tile_count() == 1,
        "select_blocks_step: one row of every sequence, got q ", scores.q.shape());
  check(mask.capacity() >= config.most_kept((max_width + config.block - 1) / config.block),
        "select_blocks_step: k grew: the state has room for ", mask.capacity(), " blocks, not for ",
        config.most_kept((max_width + config.block - 1) / config.block));
  // Not in 16 bits: all mean keys would be rounded for one row that reads some of them.
  BRINE_CALL(scores.q, select_blocks_step, mask, scores, config, width);
}

namespace {

// The lists on the CPU.
BlockMask readable(const BlockMask& mask) {
  BlockMask out = mask;
  out.counts = mask.counts.to(Device{});
  out.entries = mask.entries.to(Device{});
  return out;
}

// f(row of the tile's rows, b G + g, tile, ordinal of the row) for the rows that see a key.
template <class F>
void each_row(const BlockMask& mask, const Visibility& visible, int64_t T, F f) {
  const int64_t B = mask.counts.dim(0), G = mask.counts.dim(1), tiles = mask.tile_count();
  const RowWidths widths(visible, T);
  for (int64_t bg = 0; bg < B * G; ++bg) {
    for (int64_t n = 0; n < tiles; ++n) {
      const int64_t first = (mask.tiles.defined() ? mask.tiles.data<int32_t>()[n] : n) * mask.tile;
      for (int64_t r = 0; r < mask.tile && first + r < widths.valid(bg / G); ++r) {
        f(n * mask.tile + r, bg, n, first + r);
      }
    }
  }
}

}  // namespace

Tensor block_mask_keys(const BlockMask& any, int64_t heads, const Visibility& visible, int64_t T) {
  const BlockMask mask = readable(any);
  const int64_t B = mask.counts.dim(0), G = mask.counts.dim(1), tiles = mask.tile_count();
  const int64_t rows = mask.tiles.defined() ? tiles * mask.tile : T, group = heads / G;
  const Tensor keys = Tensor::zeros({B, heads, rows, T}, Dtype::u8);
  each_row(mask, visible, T, [&](int64_t row, int64_t bg, int64_t n, int64_t t) {
    const int32_t* entries = mask.entries.data<int32_t>() + (bg * tiles + n) * mask.capacity();
    uint8_t* to = keys.data<uint8_t>() + ((bg / G * heads + bg % G * group) * rows + row) * T;
    for (int64_t e = 0; e < mask.counts.data<int32_t>()[bg * tiles + n]; ++e) {
      if (entry_row(entries[e]) > t % mask.tile) continue;
      const int64_t first = entry_block(entries[e]) * mask.block;
      const int64_t end = std::min(first + mask.block, t + 1);
      for (int64_t h = 0; h < group; ++h)
        std::fill(to + h * rows * T + first, to + h * rows * T + end, uint8_t(1));
    }
  });
  return keys;
}

FlatCsr blocks_to_csr(const BlockMask& any, int64_t heads, const Visibility& visible, int64_t T) {
  check(!any.tiles.defined(), "blocks_to_csr: the mask must have all tiles");
  const BlockMask mask = readable(any);
  const int64_t B = mask.counts.dim(0), G = mask.counts.dim(1), group = heads / G;
  // Keys of every row and group, then rows with the heads of each group.
  std::vector<int32_t> kept(size_t(B * T * G), 0);
  auto each_key_run = [&](int64_t bg, int64_t n, int64_t t, auto f) {
    const int64_t tile = bg * mask.tile_count() + n;
    const int32_t* entries = mask.entries.data<int32_t>() + tile * mask.capacity();
    for (int64_t e = 0; e < mask.counts.data<int32_t>()[tile]; ++e) {
      if (entry_row(entries[e]) > t % mask.tile) continue;
      const int64_t first = entry_block(entries[e]) * mask.block;
      f(first, std::min(first + mask.block, t + 1));
    }
  };
  each_row(mask, visible, T, [&](int64_t, int64_t bg, int64_t n, int64_t t) {
    int32_t& count = kept[size_t((bg / G * T + t) * G + bg % G)];
    each_key_run(bg, n, t, [&](int64_t first, int64_t end) { count += int32_t(end - first); });
  });
  FlatCsr csr{.row_pointers = Tensor::empty({B, T + 1}, Dtype::i64),
              .head_offsets = Tensor::empty({B, T, heads + 1}, Dtype::i32),
              .columns = {},
              .batch = B,
              .heads = heads,
              .length = T,
              .keys = T};
  int64_t at = 0;
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t t = 0; t < T; ++t) {
      csr.row_pointers.data<int64_t>()[b * (T + 1) + t] = at;
      int32_t offset = 0;
      for (int64_t h = 0; h <= heads; ++h) {
        csr.head_offsets.data<int32_t>()[(b * T + t) * (heads + 1) + h] = offset;
        if (h < heads) offset += kept[size_t((b * T + t) * G + h / group)];
      }
      at += offset;
    }
    csr.row_pointers.data<int64_t>()[b * (T + 1) + T] = at;
  }
  csr.columns = Tensor::empty({at}, Dtype::i32);
  each_row(mask, visible, T, [&](int64_t, int64_t bg, int64_t n, int64_t t) {
    const int64_t b = bg / G;
    for (int64_t h = bg % G * group; h < (bg % G + 1) * group; ++h) {
      int32_t* to = csr.columns.data<int32_t>() +
                    csr.row_pointers.data<int64_t>()[b * (T + 1) + t] +
                    csr.head_offsets.data<int32_t>()[(b * T + t) * (heads + 1) + h];
      each_key_run(bg, n, t, [&](int64_t first, int64_t end) {
        for (int64_t j = first; j < end; ++j) *to++ = int32_t(h * T + j);
      });
    }
  });
  const Device device = any.counts.device();
  for (Tensor* x : {&csr.row_pointers, &csr.head_offsets, &csr.columns}) *x = x->to(device);
  return csr;
}

KeptKeys kept_keys(const BlockMask& any, const Visibility& visible, int64_t T) {
  const BlockMask mask = readable(any);
  const int64_t tiles = mask.tile_count();
  double by_row = 0, by_tile = 0, rows = 0;
  each_row(mask, visible, T, [&](int64_t, int64_t bg, int64_t n, int64_t t) {
    const int32_t* entries = mask.entries.data<int32_t>() + (bg * tiles + n) * mask.capacity();
    ++rows;
    for (int64_t e = 0; e < mask.counts.data<int32_t>()[bg * tiles + n]; ++e) {
      const int64_t first = entry_block(entries[e]) * mask.block;
      const double keys = double(std::min(first + mask.block, t + 1) - first);
      by_tile += keys;
      if (entry_row(entries[e]) <= t % mask.tile) by_row += keys;
    }
  });
  return {.row = by_row / std::max(rows, 1.0), .tile = by_tile / std::max(rows, 1.0)};
}

}  // namespace brine
