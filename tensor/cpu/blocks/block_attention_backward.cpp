// The gradients of attention over lists of key blocks: five products for each chunk of a tile's
// keys; probabilities are recomputed from the scores and the log-sum-exp.
//
// As in the forward pass the rows of a tile are the lanes. The gradients of queries are complete
// after one pass over the tile's keys; those of keys and values are summed over tiles, which are
// distributed over a few pieces with separate sums; the distribution depends only on the sizes.
#include "tensor/cpu/attention/flash_tile.h"
#include "tensor/cpu/blocks/block_pairs.h"
#include "tensor/cpu/blocks/block_tiles.h"
#include "tensor/cpu/core/stream.h"
#include "tensor/kernels/blocks.h"

namespace brine::BRINE_CPU {
namespace {

constexpr int64_t kKeys = kFlashKeys;

template <class T>
struct Operands {
  const T *q, *dy, *y, *lse;    // of the tile's first head and row
  const T *k, *v;               // [T, d] of the group
  int64_t head, rows, d, wide;  // numbers between heads of q, of lse; wide: whole vectors of d
  T scale;
};

// A tile's scratch memory: queries and output gradients as lanes [d, lanes] and as rows [lanes,
// wide], gradients of queries as rows, scores and their gradients [kKeys, lanes].
template <class T>
struct Room {
  T *q, *dy, *q_rows, *dy_rows, *dq, *s, *ds, *lse, *dot, *copied;
  Room(int64_t d, int64_t wide, int64_t lanes) {
    thread_local Scratch<T> scratch;
    scratch.reserve((2 * d + 3 * wide + 2 * kKeys + 2) * lanes + kKeys * wide, 10);
    q = scratch.take(d * lanes);
    dy = scratch.take(d * lanes);
    dq = scratch.take(wide * lanes);
    q_rows = scratch.take(wide * lanes);
    dy_rows = scratch.take(wide * lanes);
    s = scratch.take(kKeys * lanes);
    ds = scratch.take(kKeys * lanes);
    lse = scratch.take(lanes);
    dot = scratch.take(lanes);
    copied = scratch.take(kKeys * wide);
    if (wide > d) std::fill_n(copied, kKeys * wide, T(0));
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
  transpose<true>(Lanes<T>{room.q, lanes}, Lanes<const T>{room.q_rows, wide}, lanes, d, one);
  transpose<true>(Lanes<T>{room.dy, lanes}, Lanes<const T>{room.dy_rows, wide}, lanes, d, one);
}

// Gradients of one tile; dq of its first head, dk and dv [T, wide] are added to. Any may be null.
template <class T>
void differentiate(const BlockTile& tile, int64_t block, const Operands<T>& in, T* dq, T* dk,
                   T* dv) {
  const int64_t d = in.d, wide = in.wide, lanes = whole_vectors<T>(tile.lanes());
  const Room<T> room(d, wide, lanes);
  const LaneRows<T> rows_of(tile, lanes);
  load_tile(tile, in, room, lanes);
  thread_local KeyChunks chunks;
  chunks.begin(tile, block);
  for (bool begun = false; chunks.next();) {
    int64_t n = 0;
    for (const KeyRun& at : chunks) {
      tile_product(at.count, lanes, d, Broadcast<T, false>{in.k + at.first * d, d},
                   Lanes<const T>{room.q, lanes}, Lanes<T>{room.s + n * lanes, lanes});
      tile_product(at.count, lanes, d, Broadcast<T, false>{in.v + at.first * d, d},
                   Lanes<const T>{room.dy, lanes}, Lanes<T>{room.ds + n * lanes, lanes});
      n += at.count;
    }
    differentiate_scores(room.s, room.ds, n, lanes, in.scale, room.lse, room.dot);
    chunks.each_hidden([&](int64_t j, int64_t count, int64_t row) {
      rows_of.hide(room.s + j * lanes, count, row, T(0));
      rows_of.hide(room.ds + j * lanes, count, row, T(0));
    });
    n = 0;
    for (const KeyRun& at : chunks) {
      const T *s = room.s + n * lanes, *ds = room.ds + n * lanes;
      if (dq) {
        const T* k = whole_rows(in.k + at.first * d, at.count, d, wide, room.copied);
        tile_product(tile.lanes(), wide, at.count, Broadcast<T, true>{ds, lanes},
                     Lanes<const T>{k, wide}, Lanes<T>{room.dq, wide}, {.add = begun});
        begun = true;
      }
      if (dv) {
        tile_product(at.count, wide, tile.lanes(), Broadcast<T, false>{s, lanes},
                     Lanes<const T>{room.dy_rows, wide}, Lanes<T>{dv + at.first * wide, wide},
                     {.add = true});
      }
      if (dk) {
        tile_product(at.count, wide, tile.lanes(), Broadcast<T, false>{ds, lanes},
                     Lanes<const T>{room.q_rows, wide}, Lanes<T>{dk + at.first * wide, wide},
                     {.add = true});
      }
      n += at.count;
    }
  }
  for (int64_t h = 0; dq && h < tile.heads; ++h) {
    for (int64_t r = 0; r < tile.rows; ++r)
      std::copy_n(room.dq + (h * tile.R + r) * wide, d, dq + h * in.head + r * d);
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
    const BlockGradients<R> sums(dk, dv, wide, at.tiles);
    at.backward<R>(dq, sums, d, [&](const BlockTile& tile, int64_t row, R* to, R* to_k, R* to_v) {
      differentiate<R>(tile, mask.block,
                       {.q = q.data<R>() + row * d,
                        .dy = dy.data<R>() + row * d,
                        .y = y.data<R>() + row * d,
                        .lse = lse.data<R>() + row,
                        .k = k.data<R>() + tile.bg * T * d,
                        .v = v.data<R>() + tile.bg * T * d,
                        .head = rows * d,
                        .rows = rows,
                        .d = d,
                        .wide = wide,
                        .scale = R(scale)},
                       to, to_k, to_v);
    });
  });
}

}  // namespace brine::BRINE_CPU
