// Products of tiles in the caches, with the results in registers: c = b a or c += b a, where rows
// of `a` are vectors and elements of `b` are broadcast, so that neither is packed.
//
// Every element of c is summed over the depth in order, whatever the sizes: the bits of a sum
// depend neither on its position in a tile nor on the size of the tile.
#pragma once

#include "tensor/cpu/core/vectors.h"

namespace brine::BRINE_CPU {

// Vectors per row that are kept at a time, and rows of each such strip: as many sums as fit into
// registers with the operands.
constexpr int kStrip = kRegisters == 32 ? 4 : 2;
constexpr int rows_of_strip(int vectors) { return kRegisters == 32 && vectors != 4 ? 12 : 6; }

// One factor of a product: element (r, p) is data[r + p step] when `rows_together`, otherwise
// data[r step + p].
template <class T, bool rows_together>
struct Broadcast {
  const T* data;
  int64_t step;
  T operator()(int64_t r, int64_t p) const {
    return rows_together ? data[r + p * step] : data[r * step + p];
  }
  Broadcast from_row(int64_t r) const { return {data + (rows_together ? r : r * step), step}; }
};

// The other factor and the result: rows of vectors, `step` elements apart.
template <class T>
struct Lanes {
  T* data;
  int64_t step;
};

// The start value of the sums: 0, or c, or c times a row of factors.
template <class T>
struct Start {
  bool add = false;
  const T* factors = nullptr;
};

template <int R, int V, class T, bool together>
[[gnu::always_inline]] inline void register_tile(int64_t depth, Broadcast<T, together> b,
                                                 Lanes<const T> a, Lanes<T> c, Start<T> start) {
  constexpr int W = kWidth<T>;
  Vector<T> sum[R][V];
  if (start.factors) {
    Vector<T> factor[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) factor[v] = load(start.factors + v * W);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sum[r][v] = load(c.data + r * c.step + v * W) * factor[v];
    }
  } else if (start.add) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sum[r][v] = load(c.data + r * c.step + v * W);
    }
  } else {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sum[r][v] = Vector<T>{};
    }
  }
  for (int64_t p = 0; p < depth; ++p, a.data += a.step) {
    Vector<T> x[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) x[v] = load(a.data + v * W);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Vector<T> y = b(r, p) - Vector<T>{};
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sum[r][v] += x[v] * y;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) store(c.data + r * c.step + v * W, sum[r][v]);
  }
}

// All rows of a strip of V vectors: blocks of R, and of smaller powers of two at the end. A
// function by itself: within a large one the sums of a tile go to the stack, at twice the time.
template <int R, int V, class T, bool together>
[[gnu::noinline]] void tile_strip(int64_t rows, int64_t depth, Broadcast<T, together> b,
                                  Lanes<const T> a, Lanes<T> c, Start<T> start) {
  // Two rows have too few sums to hide the latency of an addition: four and four instead of six
  // and two.
  const int64_t in_fours = R == 6 && rows >= 8 && rows % 6 == 2 ? 8 : 0;
  int64_t r = 0;
  for (; r + R <= rows - in_fours; r += R) {
    register_tile<R, V>(depth, b.from_row(r), a, Lanes<T>{c.data + r * c.step, c.step}, start);
  }
  if constexpr (R > 1) {
    constexpr int next = R > 8 ? 8 : R > 4 ? 4 : R / 2;
    if (r < rows) {
      tile_strip<next, V>(rows - r, depth, b.from_row(r), a, Lanes<T>{c.data + r * c.step, c.step},
                          start);
    }
  }
}

// c [rows, lanes] = start + b [rows, depth] a [depth, lanes]; lanes is a multiple of a vector.
template <class T, bool together>
void tile_product(int64_t rows, int64_t lanes, int64_t depth, Broadcast<T, together> b,
                  Lanes<const T> a, Lanes<T> c, Start<T> start = {}) {
  constexpr int W = kWidth<T>;
  int64_t j = 0;
  auto strips = [&]<int V>() {
    for (; j + V * W <= lanes; j += V * W) {
      const T* factors = start.factors ? start.factors + j : nullptr;
      tile_strip<rows_of_strip(V), V>(rows, depth, b, Lanes<const T>{a.data + j, a.step},
                                      Lanes<T>{c.data + j, c.step}, {start.add, factors});
    }
  };
  strips.template operator()<kStrip>();
  if constexpr (kStrip > 2) strips.template operator()<2>();
  strips.template operator()<1>();
}

}  // namespace brine::BRINE_CPU
