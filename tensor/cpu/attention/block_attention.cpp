// Attention over lists of key blocks, forward: the arithmetic of flash_attention.cpp with the rows
// of several heads as lanes.
#include "tensor/kernels/attention.h"

#include "tensor/cpu/attention/block_pairs.h"
#include "tensor/cpu/attention/block_tiles.h"
#include "tensor/cpu/attention/cached_rows.h"
#include "tensor/cpu/attention/flash_tile.h"
#include "tensor/cpu/core/softmax_row.h"
#include "tensor/cpu/core/stream.h"
#include "tensor/stored.h"

namespace brine::BRINE_CPU {
namespace {

constexpr int64_t kQueries = kFlashQueries, kKeys = kFlashKeys;

template <class T>
struct Operands {
  const T *q, *k, *v;  // q of the tile's first head and row, `head` numbers between heads; k, v of
                       // the group
  int64_t head, d;
  T scale;
};

// Writes rows of y and lse of the tile's first head, `head` and `rows` numbers between heads.
template <class T>
void attend(const BlockTile& tile, int64_t block, const Operands<T>& in, T* y, T* lse,
            int64_t rows) {
  constexpr T kNothing = -std::numeric_limits<T>::infinity();
  const int64_t d = in.d, lanes = whole_vectors<T>(tile.lanes());
  thread_local Scratch<T> scratch;
  scratch.reserve((2 * d + kKeys) * kQueries + 2 * d * kWidth<T>, 3);
  // Rows of fewer than a vector are padded beyond the last lane.
  T *q = scratch.take(d * kQueries + kWidth<T>), *out = scratch.take(d * kQueries);
  T* s = scratch.take(kKeys * kQueries);
  if (tile.rows < tile.R || lanes > tile.lanes()) std::fill_n(q, d * kQueries, T(0));
  for (int64_t h = 0; h < tile.heads; ++h) {
    for (int64_t c = 0; c < d && tile.R % kWidth<T> != 0; ++c) {
      for (int64_t r = 0; r < tile.rows; ++r)
        q[c * kQueries + h * tile.R + r] = in.q[h * in.head + r * d + c];
    }
    if (tile.R % kWidth<T> != 0) continue;
    turn<true>(Lanes<T>{q + h * tile.R, kQueries}, Lanes<const T>{in.q + h * in.head, d}, tile.rows,
               d, [](int64_t) { return T(1); });
  }
  Running<T> run;
  std::fill_n(run.most, lanes, std::numeric_limits<T>::lowest());
  std::fill_n(run.sum, lanes, T(0));
  thread_local KeyChunks chunks;
  chunks.begin(tile, block);
  for (bool first = true; chunks.next(); first = false) {
    const int64_t keys = chunks.keys();
    T* to = s;
    for (const KeyRun& at : chunks) {
      tile_product(at.count, lanes, d, Broadcast<T, false>{in.k + at.first * d, d},
                   Lanes<const T>{q, kQueries}, Lanes<T>{to, kQueries});
      to += at.count * kQueries;
    }
    chunks.each_hidden(
        [&](int64_t n, int64_t before) { fill_rows(s + n * kQueries, tile, before, kNothing); });
    const KeyRun* ahead_run = chunks.begin();
    int64_t ahead_key = 0;
    auto ahead = [&](int64_t) __attribute__((always_inline)) {
      fetch(in.v + (ahead_run->first + ahead_key) * d, d);
      if (++ahead_key == ahead_run->count) ++ahead_run, ahead_key = 0;
    };
    lanes == kQueries ? soften<kQueries>(s, keys, lanes, in.scale, run, ahead)
                      : soften<0>(s, keys, lanes, in.scale, run, ahead);
    const T* from = s;
    bool begun = false;
    for (const KeyRun& at : chunks) {
      tile_product(d, lanes, at.count, Broadcast<T, true>{in.v + at.first * d, d},
                   Lanes<const T>{from, kQueries}, Lanes<T>{out, kQueries},
                   {.add = begun, .factors = first || begun ? nullptr : run.rescale});
      from += at.count * kQueries;
      begun = true;
    }
  }
  for (int64_t h = 0; h < tile.heads; ++h) {
    const int64_t lane = h * tile.R;
    turn<false>(Lanes<T>{y + h * in.head, d}, Lanes<const T>{out + lane, kQueries}, d, tile.rows,
                [&](int64_t m) { return 1 / run.sum[lane + m]; });
    for (int64_t r = 0; r < tile.rows; ++r) {
      lse[h * rows + r] = run.most[lane + r] * in.scale + math::log(run.sum[lane + r]);
    }
  }
}

}  // namespace

void block_attention(Tensor y, Tensor lse, Tensor q, Tensor k, Tensor v, BlockMask mask,
                     Visibility visible, double scale) {
  if (q.dtype() == Dtype::bf16 && takes_block_pairs(q.dim(3), mask)) {
    return block_attention_pairs(y, lse, q, k, v, mask, visible, scale);
  }
  if (q.dtype() == Dtype::bf16 || q.dtype() == Dtype::f16) {
    return block_attention(y, lse, q.to(Dtype::f32), k.to(Dtype::f32), v.to(Dtype::f32), mask,
                           visible, scale);
  }
  const int64_t T = k.dim(2), d = q.dim(3), rows = q.dim(2);
  const BlockPasses at(mask, visible, q.dim(0), q.dim(1), k.dim(1), rows);
  dispatch_float(q.dtype(), [&]<class R>() {
    for_pieces(at.B * at.G * at.passes * at.tiles, at.pairs() * d, [&](int64_t i) {
      const int64_t bgp = i % (at.B * at.G * at.passes), bg = bgp / at.passes,
                    n = at.tiles - 1 - i / (at.B * at.G * at.passes);
      const BlockTile tile = at.tile(bg, n, bgp % at.passes);
      const int64_t row = tile.bh * rows + tile.row0, keys = bg * T * d;
      R *to = y.data<R>() + row * d, *sums = lse.data<R>() + row;
      if (tile.rows > 0) {
        attend<R>(tile, mask.block,
                  {.q = q.data<R>() + row * d,
                   .k = k.data<R>() + keys,
                   .v = v.data<R>() + keys,
                   .head = rows * d,
                   .d = d,
                   .scale = R(scale)},
                  to, sums, rows);
      }
      const int64_t left = at.rows_in(n) - tile.rows;
      for (int64_t h = 0; left > 0 && h < tile.heads; ++h) {
        std::fill_n(to + (h * rows + tile.rows) * d, left * d, R(0));
        std::fill_n(sums + h * rows + tile.rows, left, R(0));
      }
    });
  });
}

void block_attention_step(Tensor y, Tensor q, Tensor k, Tensor v, BlockMask mask, Tensor width,
                          double scale) {
  const int64_t B = q.dim(0), H = q.dim(1), S = k.dim(2), d = k.dim(3), G = k.dim(1);
  const int64_t group = H / G;
  int64_t work = 0;
  for (int64_t i = 0; i < B * G; ++i)
    work += mask.counts.data<int32_t>()[i] * mask.block * group * d;
  dispatch_stored(y.dtype(), k.dtype(), [&]<class T, class Stored>() {
    for_pieces(B * H, work, [&](int64_t i) {
      const int64_t bg = i / group, w = width.data<int64_t>()[i / H];
      const BlockTile tile{.bh = i,
                           .bg = bg,
                           .heads = 1,
                           .row0 = 0,
                           .first = 0,
                           .rows = w,
                           .R = 1,
                           .entries = mask.entries.data<int32_t>() + bg * mask.capacity(),
                           .count = mask.counts.data<int32_t>()[bg]};
      thread_local std::vector<KeyRun> runs;
      thread_local std::vector<T> memory;
      const int64_t n = runs_of(runs, tile, mask.block);
      memory.resize(size_t(n));
      T *p = memory.data(), *to = p;
      const Stored *keys = k.data<Stored>() + bg * S * d, *values = v.data<Stored>() + bg * S * d;
      for (const KeyRun& run : runs) {
        dots(to, q.data<T>() + i * d, keys + run.first * d, run.count, d, T(scale));
        to += run.count;
      }
      softmax_in_place(p, n);
      weighted_sum(y.data<T>() + i * d, p, values, runs, d);
    });
  });
}

}  // namespace brine::BRINE_CPU
