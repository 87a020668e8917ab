// What both directions of tiled attention share: the layout of a tile in shared memory, and the two
// products of tiles that a block of threads computes from there.
//
// A block has 16 threads across and Rows / kOwn rows of them. A thread owns the rows ty + i *
// (Rows / kOwn) of each product: then the two rows that a warp reads at a time lie in different
// banks. Rows of a tile are one packet longer than they need be, for the same reason.
#pragma once

#include "tensor/cuda/common.cuh"

namespace brine::cuda {

constexpr int kAcross = 16;  // threads that share the rows of a product

// n numbers that are read and written at once.
template <class T, int n>
struct alignas(n * sizeof(T)) Packet {
  T at[n];
};
template <class T>
constexpr int kPacket = 16 / int(sizeof(T));

template <class T, int n>
__device__ inline Packet<T, n> load_packet(const T* from) {
  return *reinterpret_cast<const Packet<T, n>*>(from);
}
template <class T, int n>
__device__ inline void store_packet(T* to, const Packet<T, n>& x) {
  *reinterpret_cast<Packet<T, n>*>(to) = x;
}

// Numbers from one row of a tile of so many columns to the next.
template <class T>
constexpr int row_step(int columns) {
  return columns + kPacket<T>;
}

// Sizes of the kernels of heads of up to D numbers.
template <class T, int D>
struct TileOf {
  static constexpr int rows =
      sizeof(T) == 4 ? 64 : 32;                // of the tile that stays and that which moves
  static constexpr int columns = D / kAcross;  // of a result of D columns, for a thread
  static constexpr int keys = rows / kAcross;  // of the scores, for a thread
  static constexpr int packet = columns < kPacket<T> ? columns : kPacket<T>;
  static constexpr int step = row_step<T>(D), score_step = row_step<T>(rows);
};

// Rows of one head, `step` apart.
template <class T>
struct HeadRows {
  T* data;
  int64_t step;
  __device__ T* row(int64_t t) const { return data + t * step; }
};

// tile [Rows, D] = count rows of d numbers, the rest 0. `packed`: rows begin at whole packets.
template <int Rows, int D, int Threads, class T>
__device__ inline void load_tile(T* tile, const T* from, int64_t step, int64_t count, int d,
                                 bool packed) {
  constexpr int n = kPacket<T>, packets = D / n;
  if (packed) {
#pragma unroll
    for (int i = threadIdx.x; i < Rows * packets; i += Threads) {
      const int r = i / packets, c = i % packets * n;
      Packet<T, n> x{};
      if (r < count && c < d) x = load_packet<T, n>(from + r * step + c);
      store_packet<T, n>(tile + r * row_step<T>(D) + c, x);
    }
  } else {
    for (int i = threadIdx.x; i < Rows * D; i += Threads) {
      const int r = i / D, c = i % D;
      tile[r * row_step<T>(D) + c] = r < count && c < d ? from[r * step + c] : T(0);
    }
  }
}

// scores[i][j] = x . y for the thread's rows of x and the rows tx + 16 j of y, both tiles [., D].
template <int D, int Apart, int R, int C, class T>
__device__ inline void score_product(T (&scores)[R][C], const T* x, const T* y, int ty, int tx) {
  constexpr int n = kPacket<T>, step = row_step<T>(D);
#pragma unroll
  for (int i = 0; i < R; ++i) {
#pragma unroll
    for (int j = 0; j < C; ++j) scores[i][j] = 0;
  }
#pragma unroll 4
  for (int c = 0; c < D; c += n) {
    Packet<T, n> own[R];
#pragma unroll
    for (int i = 0; i < R; ++i) own[i] = load_packet<T, n>(x + (ty + i * Apart) * step + c);
#pragma unroll
    for (int j = 0; j < C; ++j) {
      const Packet<T, n> other = load_packet<T, n>(y + (tx + j * kAcross) * step + c);
#pragma unroll
      for (int i = 0; i < R; ++i) {
#pragma unroll
        for (int e = 0; e < n; ++e) scores[i][j] += own[i].at[e] * other.at[e];
      }
    }
  }
}

// The column of a result of D columns that number c of a thread's lies in.
template <int P>
__device__ inline int own_column(int c, int tx) {
  return (c / P * kAcross + tx) * P + c % P;
}

// sums[i][c] += the thread's rows of weights [., N] times y [N, D].
template <int N, int D, int Apart, int R, int C, class T>
__device__ inline void add_product(T (&sums)[R][C], const T* weights, const T* y, int ty, int tx) {
  constexpr int n = kPacket<T>, P = C < n ? C : n, step = row_step<T>(D);
#pragma unroll 2
  for (int k = 0; k < N; k += n) {
    Packet<T, n> own[R];
#pragma unroll
    for (int i = 0; i < R; ++i) {
      own[i] = load_packet<T, n>(weights + (ty + i * Apart) * row_step<T>(N) + k);
    }
#pragma unroll
    for (int e = 0; e < n; ++e) {
#pragma unroll
      for (int c = 0; c < C; c += P) {
        const Packet<T, P> other = load_packet<T, P>(y + (k + e) * step + own_column<P>(c, tx));
#pragma unroll
        for (int i = 0; i < R; ++i) {
#pragma unroll
          for (int j = 0; j < P; ++j) sums[i][c + j] += own[i].at[e] * other.at[j];
        }
      }
    }
  }
}

// weights [., N] = the thread's rows of scores. Only the thread's half of a warp reads them again.
template <int N, int Apart, int R, int C, class T>
__device__ inline void store_scores(T* weights, const T (&scores)[R][C], int ty, int tx) {
  __syncwarp();  // what lay here before may still be read
#pragma unroll
  for (int i = 0; i < R; ++i) {
#pragma unroll
    for (int j = 0; j < C; ++j) {
      weights[(ty + i * Apart) * row_step<T>(N) + tx + j * kAcross] = scores[i][j];
    }
  }
  __syncwarp();
}

// Over the 16 threads that share rows.
template <class T, class Op>
__device__ inline T reduce_across(T value, Op op) {
#pragma unroll
  for (int offset = kAcross / 2; offset > 0; offset /= 2) {
    value = op(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}

// Whether rows of d numbers from each of the places can be read by packets.
template <class T, class... P>
bool packed_rows(int64_t d, P*... data) {
  return d % kPacket<T> == 0 && ((reinterpret_cast<uintptr_t>(data) % 16 == 0) && ...);
}

// f<D>() with the least D that holds d, which says whether the device has room for its tiles; false
// where d is beyond the tiles.
template <class F>
bool dispatch_head(int64_t d, F&& f) {
  if (d <= 32) return f.template operator()<32>();
  if (d <= 64) return f.template operator()<64>();
  return d <= 128 && f.template operator()<128>();
}

// Sizes and visible keys of a call.
struct AttentionSizes {
  int64_t H, T, d, tiles;
  Widths widths;
  bool packed;
};

}  // namespace brine::cuda
