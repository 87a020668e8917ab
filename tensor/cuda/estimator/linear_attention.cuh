// Linear attention in chunks, what its passes share. Each of them is
//   sum = x state + lower(x y^T + bias) z
// for tiles of 64 rows: the state stands for the rows of other chunks, the triangle for those of
// the row's chunk. Products are computed by blocks from slices in shared memory. A block keeps
// the triangle for all its columns of the result.
#pragma once

#include "tensor/cuda/core/tensor_cores.cuh"
#include "tensor/cuda/estimator/chunk_length.h"

namespace brine::cuda::chunked {

constexpr int kPerThread = 4;  // rows and columns of a block's product that one thread has
constexpr int kAcross = kTile / kPerThread;
static_assert(kAcross * kAcross == kThreads);

// The depth of a product per load of shared memory.
template <class T>
constexpr int kSlice = 64 / int(sizeof(T));

// Blocks that share a multiprocessor, at least.
template <class T>
constexpr int kBlocks = sizeof(T) == 4 ? 2 : 1;

// From one row of a slice to the next: the 32 numbers that tensor cores read at once are then in 32
// banks.
template <class T>
constexpr int kPitch = kTile + 32 / int(sizeof(T));

template <class T>
struct alignas(16) Shared {
  T a[kSlice<T>][kPitch<T>], b[kSlice<T>][kPitch<T>];
};

// 64 x 64 numbers of a triangle.
template <class T>
using WeightTile = T[kTile][kTile + 1];

// Dynamic shared memory of a block that keeps so many.
template <class T>
constexpr size_t kept_bytes(int64_t kept) {
  return sizeof(Shared<T>) + size_t(kept) * sizeof(WeightTile<T>);
}

// The thread's corner of the tile. The rows of a warp are in the half of the tile that
// row_of<true>() gives it.
__device__ inline int thread_row() {
  const int warp = int(threadIdx.x) / kWarp;
  return (warp / 2 % 2 * 4 + warp / 4 * 2 + warp % 2) * 2 * kPerThread +
         int(threadIdx.x) % kWarp / kAcross * kPerThread;
}
__device__ inline int thread_column() { return int(threadIdx.x) % kAcross * kPerThread; }

// The position of a thread's number [i][j] in the tile. kTensor: a warp has 16 rows and 32 columns,
// and j counts a lane's numbers of the i-th eight of them (multiply_add() in tensor_cores.cuh).
template <bool kTensor>
__device__ inline int row_of(int i, int j) {
  if constexpr (!kTensor) return thread_row() + i;
  return int(threadIdx.x) / kWarp % 4 * 16 + int(threadIdx.x) % kWarp / 4 + j / 2 * 8;
}
template <bool kTensor>
__device__ inline int column_of(int i, int j) {
  if constexpr (!kTensor) return thread_column() + j;
  return int(threadIdx.x) / kWarp / 4 * 32 + i * 8 + int(threadIdx.x) % 4 * 2 + j % 2;
}

// f.operator()<kTensor>(): whether the products of T use tensor cores. They split f32: the omitted
// part of a product is at most 2^-20 of it.
template <class T, class F>
void dispatch_products(F&& f) {
  if constexpr (sizeof(T) == 4) {
    if (tensor_cores()) return f.template operator()<true>();
  }
  f.template operator()<false>();
}

// Numbers of a slice that one thread loads: neighbours in memory, in one load where rows are
// aligned to them.
template <class T>
constexpr int kPack = kSlice<T>* kTile / kThreads;
template <class T>
struct alignas(16) Pack {
  static_assert(kPack<T> * sizeof(T) == 16);
  T x[kPack<T>];
};

// Numbers c .. c + kPack - 1 of a row of `columns` numbers, 0 from there on. whole: the row is
// aligned and its length a multiple of kPack.
template <class T>
__device__ inline Pack<T> pack_of(const T* row, int c, int columns, bool whole) {
  if (whole) return c < columns ? *reinterpret_cast<const Pack<T>*>(row + c) : Pack<T>{};
  Pack<T> out;
#pragma unroll
  for (int j = 0; j < kPack<T>; ++j) out.x[j] = c + j < columns ? row[c + j] : T(0);
  return out;
}

// The thread's numbers of a slice f(i, k0 + k) of a matrix's rows i, or with kAlong false of its
// rows k; set() stores them at to[k][i].
template <bool kAlong, class T>
struct Slice {
  Pack<T> numbers;

  // Along a row four threads have a slice. Two of them are neighbours, so that few rows are read at
  // once and few stores meet in a bank.
  static __device__ int k() {
    const int at = int(threadIdx.x);
    return kAlong ? (at % 2 + at / (2 * kTile) * 2) * kPack<T> : at / (kTile / kPack<T>);
  }
  static __device__ int i() {
    const int at = int(threadIdx.x);
    return kAlong ? at / 2 % kTile : at % (kTile / kPack<T>)*kPack<T>;
  }
  // m.pack(r, c): numbers c and on of row r, 0 outside the matrix; both from r0 and c0 on.
  template <class M>
  __device__ void get(int k0, const M& m, int r0, int c0) {
    numbers = kAlong ? m.pack(r0 + i(), c0 + k0 + k()) : m.pack(r0 + k0 + k(), c0 + i());
  }
  __device__ void set(T (&to)[kSlice<T>][kPitch<T>]) const {
    if constexpr (kAlong) {
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) to[k() + j][i()] = numbers.x[j];
    } else {
      *reinterpret_cast<Pack<T>*>(&to[k()][i()]) = numbers;
    }
  }
};

// sum += a b^T of the slices in shared memory.
template <class T>
__device__ inline void multiply_slice(const Shared<T>& shared, T (&sum)[kPerThread][kPerThread]) {
  const int row = thread_row(), column = thread_column();
#pragma unroll 2
  for (int k = 0; k < kSlice<T>; ++k) {
    T x[kPerThread], y[kPerThread];
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) x[i] = shared.a[k][row + i];
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) y[j] = shared.b[k][column + j];
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
#pragma unroll
      for (int j = 0; j < kPerThread; ++j) sum[i][j] += x[i] * y[j];
    }
  }
}
__device__ inline void multiply_slice_tensor(const Shared<float>& shared,
                                             float (&sum)[kPerThread][kPerThread]) {
  const int row = row_of<true>(0, 0), column = column_of<true>(0, 0) / 8 * 8;
  const int g = int(threadIdx.x) % kWarp / 4, t = int(threadIdx.x) % 4;
#pragma unroll
  for (int k0 = 0; k0 < kSlice<float>; k0 += 8) {
    const int k = k0 + t;
    SplitNumber x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = SplitNumber(shared.a[k + i / 2 * 4][row + i % 2 * 8]);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const SplitNumber y[2] = {SplitNumber(shared.b[k][column + i * 8 + g]),
                                SplitNumber(shared.b[k + 4][column + i * 8 + g])};
      multiply_add(sum[i], x, y);
    }
  }
}

// A factor of a product: a matrix from row r0 and column c0 on.
template <class M>
struct Factor {
  M matrix;
  int r0, c0;
};
template <class M>
Factor(M, int, int) -> Factor<M>;

// sum += a(i, k) b(j, k) over k < K, for the thread's i and j; rows and columns outside a factor
// are 0. kAlong: k counts its columns, else its rows. A slice is loaded while the previous one is
// multiplied.
template <bool kAlongA, bool kAlongB, bool kTensor, class T, class A, class B>
__device__ inline void multiply(Shared<T>& shared, T (&sum)[kPerThread][kPerThread], int K,
                                const Factor<A>& a, const Factor<B>& b) {
  Slice<kAlongA, T> next_a;
  Slice<kAlongB, T> next_b;
  next_a.get(0, a.matrix, a.r0, a.c0);
  next_b.get(0, b.matrix, b.r0, b.c0);
  for (int k0 = 0; k0 < K; k0 += kSlice<T>) {
    __syncthreads();
    next_a.set(shared.a);
    next_b.set(shared.b);
    __syncthreads();
    if (k0 + kSlice<T> < K) {
      next_a.get(k0 + kSlice<T>, a.matrix, a.r0, a.c0);
      next_b.get(k0 + kSlice<T>, b.matrix, b.r0, b.c0);
    }
    if constexpr (kTensor) {
      multiply_slice_tensor(shared, sum);
    } else {
      multiply_slice(shared, sum);
    }
  }
}

// The sum in the layout of thread_row() and thread_column(); by way of the slices, which have room
// for half of it.
template <bool kTensor, class T>
__device__ inline void settle(Shared<T>& shared, T (&sum)[kPerThread][kPerThread]) {
  if constexpr (kTensor) {
    constexpr int kHalf = kTile / 2;
    static_assert(sizeof(T[kHalf][kTile + 1]) <= sizeof(Shared<T>));
    T(&half)[kHalf][kTile + 1] = reinterpret_cast<T(&)[kHalf][kTile + 1]>(shared);
    const int thread_half = thread_row() / kHalf;
#pragma unroll 1
    for (int h = 0; h < 2; ++h) {
      __syncthreads();  // the slices, or the other half, may still be read
      if (thread_half == h) {
#pragma unroll
        for (int i = 0; i < kPerThread; ++i) {
#pragma unroll
          for (int j = 0; j < kPerThread; ++j) {
            half[row_of<true>(i, j) % kHalf][column_of<true>(i, j)] = sum[i][j];
          }
        }
      }
      __syncthreads();
      if (thread_half == h) {
#pragma unroll
        for (int i = 0; i < kPerThread; ++i) {
#pragma unroll
          for (int j = 0; j < kPerThread; ++j)
            sum[i][j] = half[thread_row() % kHalf + i][thread_column() + j];
        }
      }
    }
  }
}

// Writes the thread's part of a row: columns column .. column + 3, those in [begin, end), to row[0
// .. end - begin).
template <class T>
__device__ inline void put(T* row, int64_t column, const T (&values)[kPerThread], int64_t begin,
                           int64_t end) {
  struct alignas(16) Four {
    T x[kPerThread];
  };
  T* to = row + (column - begin);
  if (column >= begin && column + kPerThread <= end && reinterpret_cast<uintptr_t>(to) % 16 == 0) {
    *reinterpret_cast<Four*>(to) = {{values[0], values[1], values[2], values[3]}};
    return;
  }
#pragma unroll
  for (int j = 0; j < kPerThread; ++j) {
    if (column + j >= begin && column + j < end) to[j] = values[j];
  }
}

// ---- what is multiplied: rows of one head, 0 outside
template <class T>
struct Matrix {
  const T* p;
  int rows, columns;
  bool whole;  // rows are aligned

  __device__ T operator()(int r, int c) const {
    return r < rows && c < columns ? p[int64_t(r) * columns + c] : T(0);
  }
  __device__ Pack<T> pack(int r, int c) const {
    return r < rows ? pack_of(p + int64_t(r) * columns, c, columns, whole) : Pack<T>{};
  }
};

// [identity ; v]
template <class T>
struct Values {
  const T *identity, *v;
  int rows, i, d;
  bool whole;

  __device__ T operator()(int r, int c) const {
    if (r >= rows || c >= i + d) return T(0);
    return c < i ? identity[int64_t(r) * i + c] : v[int64_t(r) * d + c - i];
  }
  __device__ Pack<T> pack(int r, int c) const {
    if (whole && r < rows) {
      return c < i ? pack_of(identity + int64_t(r) * i, c, i, true)
                   : pack_of(v + int64_t(r) * d, c - i, d, true);
    }
    Pack<T> out;
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) out.x[j] = (*this)(r, c + j);
    return out;
  }
};

// The gradient of the sums in the numerator.
template <class T>
struct Numerators {
  const T *dy, *share;  // share [rows] = 1 / den
  int rows, e;
  bool whole;

  __device__ Pack<T> pack(int r, int c) const {
    if (r >= rows) return {};
    Pack<T> out = pack_of(dy + int64_t(r) * e, c, e, whole);
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) out.x[j] *= share[r];
    return out;
  }
};

// A tile of a triangle in shared memory.
template <class T>
struct Weights {
  const WeightTile<T>& tile;

  __device__ Pack<T> pack(int r, int c) const {
    Pack<T> out;
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) out.x[j] = tile[r][c + j];
    return out;
  }
};

// What is added to the products of row r with row s: nothing, a number of r, a number of s.
template <class T>
struct NoBias {
  __device__ T operator()(int, int) const { return 0; }
};
template <class T>
struct RowBias {
  const T* of_row;
  int rows;
  __device__ T operator()(int r, int) const { return r < rows ? of_row[r] : T(0); }
};
template <class T>
struct ColumnBias {
  const T* of_column;
  __device__ T operator()(int, int s) const { return of_column[s]; }
};

// Sizes and inputs of a call. Members that only the backward pass uses are null in the forward
// pass.
template <class T>
struct Work {
  int64_t groups, heads;  // of a sequence: groups of heads, heads of a group
  int64_t identity_step;
  int tokens, m, i, d;
  int chunk, chunks;  // rows of a chunk, a multiple of kTile; chunks of a head
  int kept;           // tiles of a triangle that a block keeps
  RowWidths widths;
  bool m_whole, e_whole, values_whole;  // rows of features, of y and the states, of values
  const T *q, *k, *v, *identity, *dy, *share, *below;  // share, below [B, H, T]

  __host__ __device__ int e() const { return i + d; }
  // Of group g, and of head n of all heads, which is of group n / heads.
  __device__ int rows(int64_t g) const { return int(widths.valid(g / groups)); }
  __device__ Matrix<T> queries(int64_t n) const {
    return {q + n * tokens * m, rows(n / heads), m, m_whole};
  }
  __device__ Matrix<T> keys(int64_t g) const { return {k + g * tokens * m, rows(g), m, m_whole}; }
  __device__ Values<T> values(int64_t g) const {
    return {identity + g / groups * identity_step, v + g * tokens * d, rows(g), i, d, values_whole};
  }
  __device__ Numerators<T> numerators(int64_t n) const {
    return {dy + n * tokens * e(), share + n * tokens, rows(n / heads), e(), e_whole};
  }
  // State `place` of them.
  __device__ Matrix<T> state_at(const T* states, int place) const {
    return {states + int64_t(place) * m * e(), m, e(), e_whole};
  }
};

// The states of one turn of groups: state [turn, chunks, m, e] and sums f64 [turn, chunks, m],
// where all rows see all keys [turn, 1, ..].
template <class T>
struct States {
  const T* state;
  const double* sums;
};

// Rows r0 .. r0 + 63 of head n in group g, the `local`-th of its turn, and the columns c0 .. end -
// 1 of the result, a tile after the other.
struct Place {
  int n, g, local, r0, c0, end;
  bool fresh = true;  // the first of its tiles

  // The calling block's, of groups from `first` on with `heads` heads each and `columns` columns,
  // `span` of them for each block. A kernel over groups passes 1 head, and does not read n.
  __device__ Place(int64_t first, int heads, int tokens, int columns, int span) {
    const int wide = (columns + span - 1) / span, tall = (tokens + kTile - 1) / kTile;
    c0 = int(blockIdx.x) % wide * span;
    end = c0 + span < columns ? c0 + span : columns;
    r0 = int(blockIdx.x) / wide % tall * kTile;
    const int head = int(blockIdx.x) / wide / tall;
    local = head / heads;
    g = int(first) + local;
    n = int(first) * heads + head;
  }
  __device__ bool more() const { return c0 < end; }
  __device__ void next() {
    c0 += kTile;
    fresh = false;
  }
};

// Of the row's chunk, the rows that are processed individually: a range of tiles.
template <class T>
__device__ inline void chunk_range(const Work<T>& work, const Place& at, bool later, int& from,
                                   int& to) {
  const int rows = work.rows(at.g), start = at.r0 / work.chunk * work.chunk;
  from = later ? at.r0 : start;
  to = later ? (rows - start < work.chunk ? rows : start + work.chunk) : at.r0 + kTile;
  to = to < rows ? to : rows;
  if (!work.widths.causal) to = from;
}

// The state from which the rows at `at` start.
template <class T>
__device__ inline int state_of(const Work<T>& work, const Place& at) {
  return work.widths.causal ? at.local * work.chunks + at.r0 / work.chunk : at.local;
}

// sum = x state + the sum over `heads` of triangle(x y^T + bias) z for rows r0 and on and the tile
// of columns at c0, in the layout of thread_row() and thread_column(). y(h), bias(h) and z(h) are
// those of head h: bias(h)(r, s) is a number. kStateAlong: the state's rows are columns of the
// result. row_sums: the sums of the triangle's rows, for the rows of the thread. kLater: row r sees
// rows s >= r, else s <= r. The triangle is made for the block's first tile of columns and kept for
// the others, if all of it fits; else it is made again.
template <bool kLater, bool kStateAlong, bool kTensor, class T, class X, class Y, class Bias,
          class Z>
__device__ inline void gather(Shared<T>& shared, T (&sum)[kPerThread][kPerThread],
                              T (&row_sums)[kPerThread], const Work<T>& work, const Place& at,
                              int heads, int K, const X& x, const Matrix<T>& state, const Y& y,
                              const Bias& bias, const Z& z) {
  const Factor rows{x, at.r0, 0};
  multiply<true, kStateAlong, kTensor>(
      shared, sum, K, rows, kStateAlong ? Factor{state, at.c0, 0} : Factor{state, 0, at.c0});
  int from, to;
  chunk_range(work, at, kLater, from, to);
  const int steps = to > from ? (to - from + kTile - 1) / kTile : 0;
  const bool keeps = heads * steps <= work.kept;
  WeightTile<T>* const tiles = reinterpret_cast<WeightTile<T>*>(&shared + 1);
#pragma unroll 1
  for (int step = 0; step < heads * steps; ++step) {
    const int h = step / steps, s0 = from + step % steps * kTile;
    WeightTile<T>& weights = tiles[keeps ? step : 0];
    if (at.fresh || !keeps) {
      T weight[kPerThread][kPerThread] = {};
      const auto head_bias = bias(h);
      multiply<true, true, kTensor>(shared, weight, K, rows, Factor{y(h), s0, 0});
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
#pragma unroll
        for (int j = 0; j < kPerThread; ++j) {
          const int row = row_of<kTensor>(i, j), column = column_of<kTensor>(i, j);
          const int r = at.r0 + row, s = s0 + column;
          const T w = (kLater ? s >= r : s <= r) && s < to ? weight[i][j] + head_bias(r, s) : T(0);
          weights[row][column] = w;
        }
      }
      __syncthreads();
    }
    if (at.fresh) {
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
#pragma unroll
        for (int j = 0; j < kPerThread; ++j)
          row_sums[i] += weights[thread_row() + i][thread_column() + j];
      }
    }
    multiply<true, false, kTensor>(shared, sum, to - s0 < kTile ? to - s0 : kTile,
                                   Factor{Weights<T>{weights}, 0, 0}, Factor{z(h), s0, at.c0});
  }
  settle<kTensor>(shared, sum);
}

// ---- states
// Of every chunk: state [m, e] = sum of phi times values and sums [m] of phi; kLater: of the
// queries of all heads of the group times numerators, and times `below`.
template <class T, bool kLater, bool kTensor>
__global__ __launch_bounds__(kThreads, kBlocks<T>) void chunk_sums_kernel(T* state, double* sums,
                                                                          Work<T> work,
                                                                          int64_t first) {
  __shared__ Shared<T> shared;
  __shared__ double parts[kThreads];
  const int wide = (work.e() + kTile - 1) / kTile, tall = (work.m + kTile - 1) / kTile;
  const int block = int(blockIdx.x), e0 = block % wide * kTile, m0 = block / wide % tall * kTile;
  const int64_t chunk = block / wide / tall;  // of all chunks of the turn
  const int64_t g = first + chunk / work.chunks;
  const int r0 = int(chunk % work.chunks) * work.chunk;
  const int left = work.rows(g) - r0, count = left < work.chunk ? left : work.chunk;
  T sum[kPerThread][kPerThread] = {};
  if constexpr (kLater) {
#pragma unroll 1
    for (int64_t n = g * work.heads; n < (g + 1) * work.heads; ++n) {
      const Matrix<T> phi = work.queries(n);
      const Numerators<T> numerators = work.numerators(n);
      multiply<false, false, kTensor>(shared, sum, count, Factor{phi, r0, m0},
                                      Factor{numerators, r0, e0});
    }
  } else {
    const Matrix<T> phi = work.keys(g);
    const Values<T> values = work.values(g);
    multiply<false, false, kTensor>(shared, sum, count, Factor{phi, r0, m0},
                                    Factor{values, r0, e0});
  }
  settle<kTensor>(shared, sum);
  for (int i = 0; i < kPerThread; ++i) {
    const int row = m0 + thread_row() + i;
    if (row < work.m)
      put(state + (chunk * work.m + row) * work.e(), e0 + thread_column(), sum[i], 0, work.e());
  }
  if (e0 > 0) return;
  const int column = int(threadIdx.x) % kTile, part = int(threadIdx.x) / kTile;
  double total = 0;
  const int64_t sets = kLater ? work.heads : 1;  // of rows: of queries, or the keys
#pragma unroll 1
  for (int64_t n = g * sets; n < (g + 1) * sets; ++n) {
    const Matrix<T> phi = kLater ? work.queries(n) : work.keys(n);
    for (int r = part; r < count; r += kThreads / kTile) {
      const double x = double(phi(r0 + r, m0 + column));
      total += kLater ? double(work.below[n * work.tokens + r0 + r]) * x : x;
    }
  }
  parts[threadIdx.x] = total;
  __syncthreads();
  if (part > 0 || m0 + column >= work.m) return;
  for (int p = 1; p < kThreads / kTile; ++p) total += parts[p * kTile + column];
  sums[chunk * work.m + m0 + column] = total;
}

}  // namespace brine::cuda::chunked
