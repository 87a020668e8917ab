// Attention over lists of key blocks, forward: the arithmetic of flash_attention.cpp with the rows
// of several heads as lanes.
#include "tensor/kernels/blocks.h"

#include "tensor/base/stored.h"
#include "tensor/cpu/attention/cached_rows.h"
#include "tensor/cpu/attention/flash_tile.h"
#include "tensor/cpu/blocks/block_pairs.h"
#include "tensor/cpu/blocks/block_tiles.h"
#include "tensor/cpu/core/stream.h"

namespace brine::BRINE_CPU {
namespace {

constexpr int64_t kKeys = kFlashKeys;

template <class T>
struct Operands {
  const T *q, *k, *v;  // q of the tile's first head and row, `head` numbers between heads; k, v of
                       // the group
  int64_t head, d;
  T scale;
};

// The softmax of a tile's chunk, with the usual numbers of lanes known at compile time.
template <class T>
void soften_lanes(T* s, int64_t keys, int64_t lanes, T scale, Running<T>& run) {
  constexpr int64_t W = kWidth<T>;
  auto ahead = [](int64_t) {};  // keys in no order: prefetching costs more than it gains
  if (lanes == W) return soften<W>(s, lanes, keys, lanes, scale, run, ahead);
  if (lanes == 2 * W) return soften<2 * W>(s, lanes, keys, lanes, scale, run, ahead);
  if (lanes == 3 * W) return soften<3 * W>(s, lanes, keys, lanes, scale, run, ahead);
  if (lanes == 4 * W) return soften<4 * W>(s, lanes, keys, lanes, scale, run, ahead);
  soften<0>(s, lanes, keys, lanes, scale, run, ahead);
}

// Writes rows of y and lse of the tile's first head, `head` and `rows` numbers between heads.
//
// Scores have the tile's rows as lanes, outputs the numbers of a head: a tile may have no more rows
// than a vector, and products of single vectors read more than they multiply.
template <class T>
void attend(const BlockTile& tile, int64_t block, const Operands<T>& in, T* y, T* lse,
            int64_t rows) {
  constexpr T kNothing = -std::numeric_limits<T>::infinity();
  const int64_t d = in.d, wide = whole_vectors<T>(d), lanes = whole_vectors<T>(tile.lanes());
  thread_local Scratch<T> scratch;
  scratch.reserve(d * lanes + kWidth<T> + kKeys * (lanes + wide) + lanes * wide, 4);
  // Rows of fewer than a vector are padded beyond the last lane.
  T *q = scratch.take(d * lanes + kWidth<T>), *out = scratch.take(lanes * wide);
  T *s = scratch.take(kKeys * lanes), *copied = scratch.take(kKeys * wide);
  if (tile.rows < tile.R || lanes > tile.lanes()) std::fill_n(q, d * lanes, T(0));
  if (wide > d) std::fill_n(copied, kKeys * wide, T(0));
  for (int64_t h = 0; h < tile.heads; ++h) {
    for (int64_t c = 0; c < d && tile.R % kWidth<T> != 0; ++c) {
      for (int64_t r = 0; r < tile.rows; ++r)
        q[c * lanes + h * tile.R + r] = in.q[h * in.head + r * d + c];
    }
    if (tile.R % kWidth<T> != 0) continue;
    transpose<true>(Lanes<T>{q + h * tile.R, lanes}, Lanes<const T>{in.q + h * in.head, d},
                    tile.rows, d, [](int64_t) { return T(1); });
  }
  Running<T> run;
  std::fill_n(run.maximum, lanes, std::numeric_limits<T>::lowest());
  std::fill_n(run.sum, lanes, T(0));
  const LaneRows<T> rows_of(tile, lanes);
  thread_local KeyChunks chunks;
  chunks.begin(tile, block);
  for (bool first = true; chunks.next(); first = false) {
    const int64_t keys = chunks.keys();
    T* to = s;
    for (const KeyRun& at : chunks) {
      tile_product(at.count, lanes, d, Broadcast<T, false>{in.k + at.first * d, d},
                   Lanes<const T>{q, lanes}, Lanes<T>{to, lanes});
      to += at.count * lanes;
    }
    chunks.each_hidden([&](int64_t n, int64_t count, int64_t row) {
      rows_of.hide(s + n * lanes, count, row, kNothing);
    });
    soften_lanes(s, keys, lanes, in.scale, run);
    for (int64_t l = 0; !first && l < tile.lanes(); ++l) {
      T* row = out + l * wide;
      const T factor = run.rescale[l];
#pragma omp simd
      for (int64_t c = 0; c < wide; ++c) row[c] *= factor;
    }
    const T* from = s;
    bool add = !first;
    for (const KeyRun& at : chunks) {
      const T* v = whole_rows(in.v + at.first * d, at.count, d, wide, copied);
      tile_product(tile.lanes(), wide, at.count, Broadcast<T, true>{from, lanes},
                   Lanes<const T>{v, wide}, Lanes<T>{out, wide}, {.add = add});
      from += at.count * lanes;
      add = true;
    }
  }
  for (int64_t h = 0; h < tile.heads; ++h) {
    for (int64_t r = 0; r < tile.rows; ++r) {
      const int64_t lane = h * tile.R + r;
      const T* row = out + lane * wide;
      const T factor = 1 / run.sum[lane];
      T* to = y + h * in.head + r * d;
#pragma omp simd
      for (int64_t c = 0; c < d; ++c) to[c] = row[c] * factor;
      lse[h * rows + r] = run.maximum[lane] * in.scale + math::log(run.sum[lane]);
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
    at.forward<R>(y, lse, [&](const BlockTile& tile, int64_t row, R* to, R* sums) {
      attend<R>(tile, mask.block,
                {.q = q.data<R>() + row * d,
                 .k = k.data<R>() + tile.bg * T * d,
                 .v = v.data<R>() + tile.bg * T * d,
                 .head = rows * d,
                 .d = d,
                 .scale = R(scale)},
                to, sums, rows);
    });
  });
}

void block_attention_step(Tensor y, Tensor q, Tensor k, Tensor v, BlockMask mask, Tensor width,
                          double scale) {
  const int64_t B = q.dim(0), H = q.dim(1), S = k.dim(2), d = k.dim(3), G = k.dim(1);
  std::vector<KeyRuns> groups(size_t(B * G));
  for (int64_t i = 0; i < B * G; ++i) {
    const int64_t w = width.data<int64_t>()[i / G];
    const int32_t* entries = mask.entries.data<int32_t>() + i * mask.capacity();
    for (int32_t e = 0; e < mask.counts.data<int32_t>()[i]; ++e) {
      const int64_t at = entry_block(entries[e]) * mask.block;
      groups[size_t(i)].add(at, std::min(at + mask.block, w) - at);
    }
  }
  dispatch_stored(y.dtype(), k.dtype(), [&]<class T, class Stored>() {
    attend_cached(y.data<T>(), q.data<T>(), k.data<Stored>(), v.data<Stored>(), groups, H / G, S, d,
                  T(scale));
  });
}

}  // namespace brine::BRINE_CPU
