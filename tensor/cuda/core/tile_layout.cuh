// Tiles of rows in shared memory, and the two products that a block of threads computes from them
// on CUDA cores or tensor cores: scores = x y^T, and sums += scores y.
#pragma once

#include "tensor/cuda/core/packs.cuh"
#include "tensor/cuda/core/tensor_cores.cuh"

namespace brine::cuda {

constexpr int kAcross = 16;  // threads that share the rows of a product

// Numbers from one row of a tile with this many columns to the next.
template <class T>
constexpr int row_step(int columns) {
  return columns + kWide<T>;
}

// tile [rows, D] = count rows of d numbers of a type that T can represent, rounded by the layout,
// the rest 0: an element that is not loaded cannot spread a NaN. `packed`: rows begin and end at
// whole packs.
template <class Layout, class S, class T = typename Layout::T>
__device__ inline void load_tile(T* tile, const S* from, int64_t step, int64_t count, int64_t d,
                                 bool packed) {
  constexpr int Rows = Layout::rows, D = Layout::size, Threads = Layout::threads;
  constexpr int n = kWide<S>, packs = D / n;
  if (packed) {
#pragma unroll
    for (int i = threadIdx.x; i < Rows * packs; i += Threads) {
      const int r = i / packs, c = i % packs * n;
      Pack<S, n> x{};
      if (r < count && c < d) x = load_pack<n>(from + r * step + c);
      T wide[n];
#pragma unroll
      for (int e = 0; e < n; ++e) wide[e] = Layout::rounded(widen<T>(x.v[e]));
      store_wide<n>(tile + r * row_step<T>(D) + c, wide);
    }
  } else {
    for (int i = threadIdx.x; i < Rows * D; i += Threads) {
      const int r = i / D, c = i % D;
      const bool inside = r < count && c < d;
      tile[r * row_step<T>(D) + c] = inside ? Layout::rounded(widen<T>(from[r * step + c])) : T(0);
    }
  }
}

// The distribution of products of tiles with `rows` rows over the threads of a block. A thread has
// the rows row(i) of a product, i < thread_rows; of scores the keys key(n), of results the columns
// column(c).

// On CUDA cores: 16 threads across and rows / ThreadRows rows of them. A thread's rows are
// rows / ThreadRows apart: the two rows that a warp reads at a time are then in different banks.
// For the same reason rows of a tile are padded by one pack.
template <class Number, int D, int ThreadRows, int Rows = sizeof(Number) == 4 ? 64 : 32>
struct PlainTile {
  using T = Number;
  static constexpr int size = D, rows = Rows, thread_rows = ThreadRows,
                       row_stride = rows / ThreadRows;
  static constexpr int threads = row_stride * kAcross;
  static constexpr int keys = rows / kAcross, columns = D / kAcross;  // of a thread
  static constexpr int step = row_step<T>(D), score_step = row_step<T>(rows);
  static constexpr int weights = rows * score_step;  // numbers of shared memory for add()
  static constexpr int lanes = kAcross;              // that share a row

  __device__ static int tx() { return int(threadIdx.x) % kAcross; }
  __device__ static int row(int i) { return int(threadIdx.x) / kAcross + i * row_stride; }
  __device__ static int key(int n) { return tx() + n * kAcross; }
  __device__ static int column(int c) { return (c / pack * kAcross + tx()) * pack + c % pack; }
  __device__ static T rounded(T x) { return x; }

  // scores += x y^T of the thread's rows of x and keys of y, both tiles [rows, D].
  __device__ static void add_scores(T (&scores)[thread_rows][keys], const T* x, const T* y) {
    constexpr int n = kWide<T>;
#pragma unroll 2
    for (int c = 0; c < D; c += n) {
      Pack<T, n> row_packs[thread_rows];
#pragma unroll
      for (int i = 0; i < thread_rows; ++i) row_packs[i] = load_pack<n>(x + row(i) * step + c);
#pragma unroll
      for (int j = 0; j < keys; ++j) {
        const Pack<T, n> other = load_pack<n>(y + key(j) * step + c);
#pragma unroll
        for (int i = 0; i < thread_rows; ++i) {
#pragma unroll
          for (int e = 0; e < n; ++e) scores[i][j] += row_packs[i].v[e] * other.v[e];
        }
      }
    }
  }

  // sums += scores y, y [rows, D]. `room` is scratch memory.
  __device__ static void add(T (&sums)[thread_rows][columns], const T (&scores)[thread_rows][keys],
                             const T* y, T* room) {
    constexpr int n = kWide<T>;
    store(room, scores);
#pragma unroll 2
    for (int k = 0; k < rows; k += n) {
      Pack<T, n> row_packs[thread_rows];
#pragma unroll
      for (int i = 0; i < thread_rows; ++i)
        row_packs[i] = load_pack<n>(room + row(i) * score_step + k);
#pragma unroll
      for (int e = 0; e < n; ++e) {
#pragma unroll
        for (int c = 0; c < columns; c += pack) {
          const auto other = load_pack<pack>(y + (k + e) * step + column(c));
#pragma unroll
          for (int i = 0; i < thread_rows; ++i) {
#pragma unroll
            for (int j = 0; j < pack; ++j) sums[i][c + j] += row_packs[i].v[e] * other.v[j];
          }
        }
      }
    }
  }

 private:
  static constexpr int pack = columns < kWide<T> ? columns : kWide<T>;

  // Only the thread's half of a warp reads them again.
  __device__ static void store(T* room, const T (&scores)[thread_rows][keys]) {
    __syncwarp();  // the previous contents may still be read
#pragma unroll
    for (int i = 0; i < thread_rows; ++i) {
#pragma unroll
      for (int j = 0; j < keys; ++j) room[row(i) * score_step + key(j)] = scores[i][j];
    }
    __syncwarp();
  }
};

// On tensor cores: a warp has 16 rows of each product, distributed as in multiply_add(). Scores are
// passed from one product to the next in registers: the keys 2 t and 2 t + 1 of a lane take the
// positions t and t + 4 of eight, and the rows of y are permuted in the same way.
template <int D>
struct TensorTile {
  using T = float;
  static constexpr int size = D, rows = 64, thread_rows = 2, threads = rows / 16 * kWarp;
  static constexpr int keys = rows / 4, columns = D / 4;  // of a thread
  static constexpr int step = row_step<T>(D);
  static constexpr int weights = 0;
  static constexpr int lanes = 4;

  __device__ static int g() { return int(threadIdx.x) % kWarp / 4; }
  __device__ static int t() { return int(threadIdx.x) % 4; }
  __device__ static int row(int i) { return int(threadIdx.x) / kWarp * 16 + g() + 8 * i; }
  __device__ static int key(int n) { return n / 2 * 8 + 2 * t() + n % 2; }
  __device__ static int column(int c) { return key(c); }
  __device__ static float rounded(float x) { return to_tf32(x); }

  __device__ static void add_scores(float (&scores)[thread_rows][keys], const float* x,
                                    const float* y) {
    float sums[keys / 2][4];
#pragma unroll
    for (int i = 0; i < thread_rows; ++i) {
#pragma unroll
      for (int n = 0; n < keys; ++n) sums[n / 2][2 * i + n % 2] = scores[i][n];
    }
#pragma unroll 2
    for (int c = 0; c < D; c += 8) {
      float a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = x[row(i % 2) * step + c + t() + i / 2 * 4];
#pragma unroll
      for (int n = 0; n < keys / 2; ++n) {
        const float* from = y + (8 * n + g()) * step + c + t();
        const float b[2] = {from[0], from[4]};
        multiply_add(sums[n], a, b);
      }
    }
#pragma unroll
    for (int i = 0; i < thread_rows; ++i) {
#pragma unroll
      for (int n = 0; n < keys; ++n) scores[i][n] = sums[n / 2][2 * i + n % 2];
    }
  }

  __device__ static void add(float (&sums)[thread_rows][columns],
                             const float (&scores)[thread_rows][keys], const float* y, float*) {
    float a[rows / 8][4];
#pragma unroll
    for (int k = 0; k < rows / 8; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[k][i] = to_tf32(scores[i % 2][2 * k + i / 2]);
    }
    // The sum of a tile leaves the tensor cores and is added in f32: theirs truncate, and a row of
    // a long sequence has thousands of tiles.
#pragma unroll
    for (int n = 0; n < columns / 2; ++n) {
      float c[4] = {};
#pragma unroll
      for (int k = 0; k < rows / 8; ++k) {
        const float* from = y + (8 * k + 2 * t()) * step + g() + 8 * n;
        const float b[2] = {from[0], from[step]};
        multiply_add(c, a[k], b);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[i / 2][2 * n + i % 2] += c[i];
    }
  }
};

// Over the threads that share rows.
template <class Layout, class T, class Op>
__device__ inline T reduce_across(T value, Op op) {
#pragma unroll
  for (int offset = Layout::lanes / 2; offset > 0; offset /= 2) {
    value = op(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}

// A thread's part of a tile of scores: [its rows][its keys].
template <class Layout>
using Scores = typename Layout::T[Layout::thread_rows][Layout::keys];

// f(i, n, score) for each score of the thread.
template <class Layout, class F>
__device__ inline void each_score(Scores<Layout>& x, F&& f) {
#pragma unroll
  for (int i = 0; i < Layout::thread_rows; ++i) {
#pragma unroll
    for (int n = 0; n < Layout::keys; ++n) f(i, n, x[i][n]);
  }
}

// scores = x y^T of two tiles [rows, D].
template <class Layout, class T = typename Layout::T>
__device__ inline void make_scores(Scores<Layout>& scores, const T* x, const T* y) {
  each_score<Layout>(scores, [](int, int, T& s) { s = 0; });
  Layout::add_scores(scores, x, y);
}

}  // namespace brine::cuda
