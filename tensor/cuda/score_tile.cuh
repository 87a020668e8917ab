// Tiles of q k^T: a block of 256 threads makes the scores of 64 rows against 64 keys, any d, and
// keeps them in registers. And what is done with such tiles: products, log-sum-exp, the teacher's.
//
// Thread (x, y) of 16 x 16 holds rows 4 y + i and keys x + 16 j of a tile, so a row lies in half a
// warp, and what it reads of a map in a few whole sectors of memory.
#pragma once

#include "tensor/cuda/common.cuh"
#include "tensor/teacher.h"

namespace brine::cuda {

constexpr int kSide = 64;
constexpr int kTileThreads = 256;
constexpr int kRowLanes = 16;      // threads that share rows
// Of a row of a tile in shared memory: 16 bytes more than it needs, so that fours stay aligned and
// rows begin in different banks.
template <class T>
constexpr int kPitch = kSide + 16 / int(sizeof(T));
template <class T>
constexpr int kTileSize = kSide * kPitch<T>;

template <class T>
using Scores = T[4][4];  // [i][j] of a thread

template <class T>
struct alignas(16) Four {
  T v[4];
};
template <class T>
__device__ inline const Four<T>& four_at(const T* x) {
  return *reinterpret_cast<const Four<T>*>(x);
}

__device__ inline int tile_x() { return int(threadIdx.x) % kRowLanes; }
__device__ inline int tile_y() { return int(threadIdx.x) / kRowLanes; }
__device__ inline int tile_row(int i) { return 4 * tile_y() + i; }
__device__ inline int tile_key(int j) { return tile_x() + kRowLanes * j; }

// Over the threads that share rows; the same on each of them.
template <class T, class Op>
__device__ inline T row_reduce(T value, Op op) {
  for (int offset = kRowLanes / 2; offset > 0; offset /= 2) {
    value = op(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}
template <class T>
__device__ inline T row_sum(T value) {
  return row_reduce(value, Plus{});
}
template <class T>
__device__ inline T row_max(T value) {
  return row_reduce(value, Max{});
}

// tile = columns [c0, c0 + 64) of `rows` rows of x [., d], 0 beyond the rows and beyond d: what is
// not read cannot spread a NaN.
template <class T>
__device__ void load_tile(T* tile, const T* x, int64_t rows, int64_t d, int64_t c0) {
  const bool fours = (reinterpret_cast<uintptr_t>(x) | uintptr_t(d) * sizeof(T)) % 16 == 0;
  if (fours && c0 + kSide <= d) {
    for (int e = int(threadIdx.x); e < kSide * kSide / 4; e += kTileThreads) {
      const int r = e / (kSide / 4), c = e % (kSide / 4) * 4;
      Four<T> piece{};
      if (r < rows) piece = four_at(x + r * d + c0 + c);
      *reinterpret_cast<Four<T>*>(tile + r * kPitch<T> + c) = piece;
    }
    return;
  }
  for (int e = int(threadIdx.x); e < kSide * kSide; e += kTileThreads) {
    const int r = e / kSide, c = e % kSide;
    tile[r * kPitch<T> + c] = r < rows && c0 + c < d ? x[r * d + c0 + c] : T(0);
  }
}

// scores += a b^T over the first `columns` columns of two tiles.
template <class T>
__device__ void add_dots(Scores<T>& scores, const T* a, const T* b, int columns) {
#pragma unroll 2
  for (int c = 0; c < columns; c += 4) {
    Four<T> p[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) p[i] = four_at(a + tile_row(i) * kPitch<T> + c);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const Four<T> r = four_at(b + tile_key(j) * kPitch<T> + c);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) scores[i][j] += p[i].v[e] * r.v[e];
      }
    }
  }
}

// scores = scale q k^T of `rows` rows of q against `keys` keys, 0 beyond. tiles holds two tiles;
// those of the last 64 columns of q and k are left in it.
template <class T>
__device__ void score_tile(Scores<T>& scores, T* tiles, const T* q, int64_t rows, const T* k,
                           int64_t keys, int64_t d, T scale) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) scores[i][j] = 0;
  }
  for (int64_t c0 = 0; c0 < d; c0 += kSide) {
    __syncthreads();  // the tiles may still be read
    load_tile(tiles, q, rows, d, c0);
    load_tile(tiles + kTileSize<T>, k, keys, d, c0);
    __syncthreads();
    add_dots(scores, tiles, tiles + kTileSize<T>, d - c0 < kSide ? int(d - c0) : kSide);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) scores[i][j] *= scale;
  }
}

// Puts what the threads hold of a tile where all can read it; the caller sets the barriers.
template <class T>
__device__ inline void store_tile(T* tile, const Scores<T>& x) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) tile[tile_row(i) * kPitch<T> + tile_key(j)] = x[i][j];
  }
}

// The log-sum-exp of a row, as one thread sees it.
template <class T>
struct TileLse {
  T most = -INFINITY, sum = 0;

  // The scores of this thread whose keys lie below `seen` (keys counted from the tile's first).
  __device__ void add(const T (&s)[4], int64_t seen) {
    T top = most;
#pragma unroll
    for (int j = 0; j < 4; ++j) top = tile_key(j) < seen && s[j] > top ? s[j] : top;
    if (top > most) sum *= math::exp(most - top);
    most = top;
#pragma unroll
    for (int j = 0; j < 4; ++j) sum += tile_key(j) < seen ? math::exp(s[j] - most) : T(0);
  }
  // Of the whole row; all threads that share it must call.
  __device__ T whole() const {
    const T top = row_max(most);
    return top + math::log(row_sum(most > -INFINITY ? sum * math::exp(most - top) : sum));
  }
};

// A teacher's attention of type T on the device: a map, or q and k.
template <class T>
struct TeacherView {
  const T *map = nullptr, *q = nullptr, *k = nullptr;
  int64_t rows = 0, d = 0;
  T scale = 0;

  TeacherView(const TeacherAttention& teacher, int64_t rows) : rows(rows) {
    if (teacher.map.defined()) {
      map = teacher.map.data<T>();
    } else {
      q = teacher.q.data<T>();
      k = teacher.k.data<T>();
      d = teacher.q.dim(3);
      scale = T(1 / std::sqrt(double(d)));
    }
  }

  // The scores of n rows from t0 against `keys` keys from key0, scaled.
  __device__ void scores(Scores<T>& u, T* tiles, int64_t bh, int64_t t0, int64_t n, int64_t key0,
                         int64_t keys) const {
    score_tile(u, tiles, q + (bh * rows + t0) * d, n, k + (bh * rows + key0) * d, keys, d, scale);
  }
  // The map at the rows of a tile; w[i] = keys of row i, 0 beyond.
  __device__ void read(Scores<T>& t, int64_t bh, int64_t t0, int64_t key0,
                       const int64_t (&w)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const T* row = map + (bh * rows + t0 + tile_row(i)) * rows;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int64_t key = key0 + tile_key(j);
        t[i][j] = key < w[i] ? row[key] : T(0);
      }
    }
  }
};

// A tile of rows of one head and what its rows see.
struct RowTile {
  int64_t bh, b, first;
  int64_t rows;  // that see a key; all rows beyond them are padding
  int64_t keys;  // that some row sees
  int64_t w[4];  // keys of the rows of this thread

  __device__ RowTile(const Widths& widths, int64_t bh, int64_t H, int64_t tile)
      : bh(bh), b(bh / H) {
    first = tile * kSide;
    const int64_t left = widths.valid(b) - first;
    rows = left < 0 ? 0 : (left < kSide ? left : kSide);
    keys = rows > 0 ? widths(b, first + rows - 1) : 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = widths(b, first + tile_row(i));
  }
  // Keys of a tile of keys.
  __device__ int64_t keys_from(int64_t key0) const {
    return keys - key0 < kSide ? keys - key0 : int64_t(kSide);
  }
};

// The tile of rows of a block in a grid of heads x tiles. The long rows of a causal mask come
// first, so that blocks end together.
__device__ inline RowTile last_tiles_first(const Widths& widths, int64_t heads, int64_t H) {
  const int64_t tiles = (widths.rows + kSide - 1) / kSide;
  const int64_t turn = int64_t(blockIdx.x) / heads;
  return RowTile(widths, int64_t(blockIdx.x) % heads, H, tiles - 1 - turn);
}

inline int64_t tiles_of(int64_t rows) { return (rows + kSide - 1) / kSide; }

// Shared memory of a block. Every device has room for it: 64 KB, and those that f64 is tested on
// 99 KB, which three tiles of it fill to the last byte.
template <class T>
constexpr size_t tile_bytes(int tiles) {
  return size_t(tiles) * kTileSize<T> * sizeof(T);
}
static_assert(tile_bytes<float>(3) <= 64 * 1024 && tile_bytes<double>(3) <= 99 * 1024);

}  // namespace brine::cuda
