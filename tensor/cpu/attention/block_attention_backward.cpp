// The gradients of attention over lists of key blocks: five products for each chunk of a tile's
// keys; probabilities are recomputed from the scores and the log-sum-exp.
//
// As in the forward pass the rows of a tile are the lanes. The gradients of queries are complete
// after one pass over the tile's keys; those of keys and values are summed over tiles, which are
// distributed over a few pieces with sums of their own, depending only on the sizes.
#include "tensor/cpu/attention/block_pairs.h"
#include "tensor/cpu/attention/block_tiles.h"
#include "tensor/cpu/attention/flash_tile.h"
#include "tensor/cpu/core/stream.h"
#include "tensor/kernels/attention.h"
#include "tensor/math.h"

namespace brine::BRINE_CPU {
namespace {

constexpr int64_t kQueries = kFlashQueries, kKeys = kFlashKeys;

template <class T>
struct Operands {
  const T *q, *dy, *y, *lse;    // of the tile's first head and row
  const T *k, *v;               // [T, d] of the group
  int64_t head, rows, d, wide;  // numbers between heads of q, of lse; wide: whole vectors of d
  T scale;
};

// A tile's scratch memory: queries and output gradients as lanes [d, kQueries] and as rows [lanes,
// wide].
template <class T>
struct Room {
  T *q, *dy, *q_rows, *dy_rows, *dq, *s, *ds, *lse, *dot;
  explicit Room(int64_t d, int64_t wide) {
    thread_local Scratch<T> scratch;
    scratch.reserve((3 * d + 2 * wide + 2 * kKeys + 2) * kQueries, 9);
    q = scratch.take(d * kQueries);
    dy = scratch.take(d * kQueries);
    dq = scratch.take(d * kQueries);
    q_rows = scratch.take(wide * kQueries);
    dy_rows = scratch.take(wide * kQueries);
    s = scratch.take(kKeys * kQueries);
    ds = scratch.take(kKeys * kQueries);
    lse = scratch.take(kQueries);
    dot = scratch.take(kQueries);
  }
};

template <class T>
void load_tile(const BlockTile& tile, const Operands<T>& in, const Room<T>& room, int64_t lanes) {
  const int64_t d = in.d, wide = in.wide;
  std::fill_n(room.q_rows, lanes * wide, T(0));
  std::fill_n(room.dy_rows, lanes * wide, T(0));
  std::fill_n(room.lse, lanes, T(0));
  std::fill_n(room.dot, lanes, T(0));
  for (int64_t h = 0; h < tile.heads; ++h) {
    for (int64_t r = 0; r < tile.rows; ++r) {
      const int64_t lane = h * tile.R + r, from = h * in.head + r * d;
      std::copy_n(in.q + from, d, room.q_rows + lane * wide);
      std::copy_n(in.dy + from, d, room.dy_rows + lane * wide);
      T sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t c = 0; c < d; ++c) sum += in.dy[from + c] * in.y[from + c];
      room.dot[lane] = in.scale * sum;
      room.lse[lane] = in.lse[h * in.rows + r];
    }
  }
  auto one = [](int64_t) { return T(1); };
  turn<true>(Lanes<T>{room.q, kQueries}, Lanes<const T>{room.q_rows, wide}, lanes, d, one);
  turn<true>(Lanes<T>{room.dy, kQueries}, Lanes<const T>{room.dy_rows, wide}, lanes, d, one);
}

// Gradients of one tile; dq of its first head, dk and dv [T, wide] are added to. Any may be null.
template <class T>
void differentiate(const BlockTile& tile, int64_t block, const Operands<T>& in, T* dq, T* dk,
                   T* dv) {
  const int64_t d = in.d, wide = in.wide, lanes = whole_vectors<T>(tile.lanes());
  const Room<T> room(d, wide);
  load_tile(tile, in, room, lanes);
  thread_local KeyChunks chunks;
  chunks.begin(tile, block);
  for (bool begun = false; chunks.next();) {
    int64_t n = 0;
    for (const KeyRun& at : chunks) {
      tile_product(at.count, lanes, d, Broadcast<T, false>{in.k + at.first * d, d},
                   Lanes<const T>{room.q, kQueries}, Lanes<T>{room.s + n * kQueries, kQueries});
      tile_product(at.count, lanes, d, Broadcast<T, false>{in.v + at.first * d, d},
                   Lanes<const T>{room.dy, kQueries}, Lanes<T>{room.ds + n * kQueries, kQueries});
      n += at.count;
    }
    for (int64_t j = 0; j < n; ++j) {
      T *s = room.s + j * kQueries, *ds = room.ds + j * kQueries;
#pragma omp simd
      for (int64_t l = 0; l < lanes; ++l) {
        s[l] = math::exp_nonpositive(s[l] * in.scale - room.lse[l]);
        ds[l] = s[l] * (ds[l] * in.scale - room.dot[l]);
      }
    }
    chunks.each_hidden([&](int64_t j, int64_t before) {
      fill_rows(room.s + j * kQueries, tile, before, T(0));
      fill_rows(room.ds + j * kQueries, tile, before, T(0));
    });
    n = 0;
    for (const KeyRun& at : chunks) {
      const T *s = room.s + n * kQueries, *ds = room.ds + n * kQueries;
      if (dq) {
        tile_product(d, lanes, at.count, Broadcast<T, true>{in.k + at.first * d, d},
                     Lanes<const T>{ds, kQueries}, Lanes<T>{room.dq, kQueries}, {.add = begun});
        begun = true;
      }
      if (dv) {
        tile_product(at.count, wide, tile.lanes(), Broadcast<T, false>{s, kQueries},
                     Lanes<const T>{room.dy_rows, wide}, Lanes<T>{dv + at.first * wide, wide},
                     {.add = true});
      }
      if (dk) {
        tile_product(at.count, wide, tile.lanes(), Broadcast<T, false>{ds, kQueries},
                     Lanes<const T>{room.q_rows, wide}, Lanes<T>{dk + at.first * wide, wide},
                     {.add = true});
      }
      n += at.count;
    }
  }
  for (int64_t h = 0; dq && h < tile.heads; ++h) {
    turn<false>(Lanes<T>{dq + h * in.head, d}, Lanes<const T>{room.dq + h * tile.R, kQueries}, d,
                tile.rows, [](int64_t) { return T(1); });
  }
}

}  // namespace

void block_attention_backward(Tensor dq, Tensor dk, Tensor dv, Tensor dy, Tensor q, Tensor k,
                              Tensor v, Tensor y, Tensor lse, BlockMask mask, Visibility visible,
                              double scale) {
  if (q.dtype() == Dtype::bf16 && takes_block_pairs(q.dim(3), mask)) {
    return block_attention_pairs_backward(dq, dk, dv, dy, q, k, v, y, lse, mask, visible, scale);
  }
  if (q.dtype() == Dtype::bf16 || q.dtype() == Dtype::f16) {
    return block_attention_backward(dq, dk, dv, dy, q.to(Dtype::f32), k.to(Dtype::f32),
                                    v.to(Dtype::f32), y, lse, mask, visible, scale);
  }
  const int64_t T = k.dim(2), d = q.dim(3), rows = q.dim(2);
  const BlockPasses at(mask, visible, q.dim(0), q.dim(1), k.dim(1), rows);
  dispatch_float(q.dtype(), [&]<class R>() {
    const int64_t wide = whole_vectors<R>(d);
    BlockGradients<R> sums(dk, dv, wide, at.tiles);
    for_pieces(at.B * at.G * sums.pieces, at.pairs() * d, [&](int64_t i) {
      const int64_t bg = i / sums.pieces;
      sums.clear(i);
      for (int64_t n = i % sums.pieces; n < at.tiles; n += sums.pieces) {
        for (int64_t p = 0; p < at.passes; ++p) {
          const BlockTile tile = at.tile(bg, n, p);
          const int64_t row = tile.bh * rows + tile.row0, keys = bg * T * d;
          R* to = dq.defined() ? dq.data<R>() + row * d : nullptr;
          if (tile.rows > 0) {
            differentiate<R>(tile, mask.block,
                             {.q = q.data<R>() + row * d,
                              .dy = dy.data<R>() + row * d,
                              .y = y.data<R>() + row * d,
                              .lse = lse.data<R>() + row,
                              .k = k.data<R>() + keys,
                              .v = v.data<R>() + keys,
                              .head = rows * d,
                              .rows = rows,
                              .d = d,
                              .wide = wide,
                              .scale = R(scale)},
                             to, sums.dk(i), sums.dv(i));
          }
          const int64_t left = at.rows_in(n) - tile.rows;
          for (int64_t h = 0; to && left > 0 && h < tile.heads; ++h) {
            std::fill_n(to + (h * rows + tile.rows) * d, left * d, R(0));
          }
        }
      }
    });
    sums.finish();
  });
}

}  // namespace brine::BRINE_CPU
