// How tiled attention is divided into tasks, in both directions and for every type of its inputs:
// by the sizes alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tensor/cpu/core/pieces.h"
#include "tensor/kernels/kernel.h"
#include "tensor/mask/csr.h"

namespace brine::BRINE_CPU {

// A tile of queries: rows [first, first + rows) of head bh = b H + h, which see up to `visible`
// keys.
struct QueryTile {
  int64_t bh, first, rows, visible;
};

// attend(tile, y, step, lse) for all tiles of `queries` rows that see keys, into rows of y
// [B, T, H d], `step` apart, and of lse [B, H, T]; the other rows become 0.
template <class T, class Attend>
void each_tile_of_queries(const Tensor& y, const Tensor& lse, const RowWidths& widths,
                          int64_t queries, Attend attend) {
  const int64_t B = lse.dim(0), H = lse.dim(1), length = lse.dim(2), step = y.dim(2), d = step / H;
  const int64_t tiles = (length + queries - 1) / queries;
  for_pieces(B * H * tiles, B * length * length * step, [&](int64_t i) {
    // The long tiles of a causal mask come first, so that threads finish at similar times.
    const int64_t bh = i % (B * H), b = bh / H, first = (tiles - 1 - i / (B * H)) * queries;
    const int64_t end = std::min(length, first + queries);
    const int64_t rows = std::clamp<int64_t>(widths.valid(b) - first, 0, end - first);
    T* to = y.data<T>() + (b * length + first) * step + bh % H * d;
    T* sums = lse.data<T>() + bh * length + first;
    if (rows > 0) attend(QueryTile{bh, first, rows, widths(b, first + rows - 1)}, to, step, sums);
    for (int64_t m = rows; m < end - first; ++m) {
      std::fill_n(to + m * step, d, T(0));
      sums[m] = 0;
    }
  });
}

// A head's tiles are distributed over pieces until there are this many tasks, so that threads
// finish at similar times; for short sequences this does not pay, because every piece needs another
// dq.
inline int64_t flash_pieces(int64_t heads, int64_t T) {
  constexpr int64_t kTasks = 32, kMaxPieces = 4, kLong = 1024;
  return T < kLong ? 1
                   : std::clamp<int64_t>((kTasks + heads - 1) / std::max<int64_t>(1, heads), 1,
                                         kMaxPieces);
}

// Targets of one head's gradients; null = not needed.
template <class T>
struct HeadGradients {
  T* dq;       // [T, wide], accumulated
  T *dk, *dv;  // [T, d]
};

// tile(bh, first key, keys, to) for all tiles of `keys` keys that are not padding; the gradients
// dk and dv [B, H, T, d] of padding become 0. dq [B, H, T, d] is summed in rows of `wide` numbers,
// of which those from d on are dropped. Any of the three may be undefined.
template <class T, class Tile>
void each_tile_of_keys(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Shape& shape,
                       int64_t wide, const RowWidths& widths, int64_t keys, Tile tile) {
  const int64_t H = shape[1], heads = shape[0] * H, length = shape[2], d = shape[3];
  const int64_t tiles = (length + keys - 1) / keys, pieces = flash_pieces(heads, length);
  const bool in_place = pieces == 1 && wide == d;
  Tensor parts;
  if (dq.defined()) {
    parts = in_place ? dq : Tensor::empty({heads * pieces, length, wide}, DtypeOf<T>::value);
  }
  auto data = [](const Tensor& t) { return t.defined() ? t.data<T>() : nullptr; };
  T *gq = data(parts), *gk = data(dk), *gv = data(dv);
  for_pieces(heads * pieces, heads * length * length * d, [&](int64_t i) {
    const int64_t bh = i / pieces, valid = widths.valid(bh / H);
    const HeadGradients<T> to{gq ? gq + i * length * wide : nullptr,
                              gk ? gk + bh * length * d : nullptr,
                              gv ? gv + bh * length * d : nullptr};
    if (to.dq) std::fill_n(to.dq, length * wide, T(0));
    for (int64_t j = i % pieces; j < tiles; j += pieces) {
      const int64_t first = j * keys, end = std::min(length, first + keys),
                    stop = std::min(end, valid);
      if (first < stop) tile(bh, first, stop - first, to);
      const int64_t rest = std::max(first, stop);
      if (to.dk) std::fill(to.dk + rest * d, to.dk + end * d, T(0));
      if (to.dv) std::fill(to.dv + rest * d, to.dv + end * d, T(0));
    }
  });
  if (!gq || in_place) return;
  parallel_for(heads * length, 64, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* from = gq + (r / length * pieces * length + r % length) * wide;
      T* out = dq.data<T>() + r * d;
      std::copy_n(from, d, out);
      for (int64_t p = 1; p < pieces; ++p) {
#pragma omp simd
        for (int64_t c = 0; c < d; ++c) out[c] += from[p * length * wide + c];
      }
    }
  });
}

}  // namespace brine::BRINE_CPU
