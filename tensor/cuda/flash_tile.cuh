// What both directions of tiled attention share: the layout of a tile in shared memory, and the two
// products of tiles that a block of threads computes from there, on CUDA cores or tensor cores.
#pragma once

#include "tensor/cuda/tensor_cores.cuh"

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

// Rows of one head, `step` apart.
template <class T>
struct HeadRows {
  T* data;
  int64_t step;
  __device__ T* row(int64_t t) const { return data + t * step; }
};

// tile [Rows, D] = count rows of d numbers, rounded by the layout, the rest 0. `packed`: rows begin
// at whole packets.
template <class Layout, class T>
__device__ inline void load_tile(T* tile, const T* from, int64_t step, int64_t count, int d,
                                 bool packed) {
  constexpr int Rows = Layout::rows, D = Layout::size, Threads = Layout::threads;
  constexpr int n = kPacket<T>, packets = D / n;
  if (packed) {
#pragma unroll
    for (int i = threadIdx.x; i < Rows * packets; i += Threads) {
      const int r = i / packets, c = i % packets * n;
      Packet<T, n> x{};
      if (r < count && c < d) x = load_packet<T, n>(from + r * step + c);
#pragma unroll
      for (int e = 0; e < n; ++e) x.at[e] = Layout::rounded(x.at[e]);
      store_packet<T, n>(tile + r * row_step<T>(D) + c, x);
    }
  } else {
    for (int i = threadIdx.x; i < Rows * D; i += Threads) {
      const int r = i / D, c = i % D;
      const bool inside = r < count && c < d;
      tile[r * row_step<T>(D) + c] = inside ? Layout::rounded(from[r * step + c]) : T(0);
    }
  }
}

// How the products of tiles of `rows` rows lie in the threads of a block. A thread holds the rows
// row(i) of a product, i < own; of scores the keys key(n), of results the columns column(c).

// On CUDA cores: 16 threads across and rows / Own rows of them. A thread's rows lie rows / Own
// apart: then the two rows that a warp reads at a time lie in different banks. Rows of a tile are
// one packet longer than they need be, for the same reason.
template <class Number, int D, int Own>
struct PlainTile {
  using T = Number;
  static constexpr int size = D, rows = sizeof(T) == 4 ? 64 : 32, own = Own, apart = rows / Own;
  static constexpr int threads = apart * kAcross;
  static constexpr int keys = rows / kAcross, columns = D / kAcross;  // of a thread
  static constexpr int step = row_step<T>(D), score_step = row_step<T>(rows);
  static constexpr int weights = rows * score_step;  // numbers of shared memory for add()
  static constexpr int lanes = kAcross;              // that share a row

  __device__ static int tx() { return int(threadIdx.x) % kAcross; }
  __device__ static int row(int i) { return int(threadIdx.x) / kAcross + i * apart; }
  __device__ static int key(int n) { return tx() + n * kAcross; }
  __device__ static int column(int c) {
    return (c / packet * kAcross + tx()) * packet + c % packet;
  }
  __device__ static T rounded(T x) { return x; }

  // scores = x y^T of the thread's rows of x and keys of y, both tiles [rows, D].
  __device__ static void score(T (&scores)[own][keys], const T* x, const T* y) {
    constexpr int n = kPacket<T>;
#pragma unroll
    for (int i = 0; i < own; ++i) {
#pragma unroll
      for (int j = 0; j < keys; ++j) scores[i][j] = 0;
    }
#pragma unroll 4
    for (int c = 0; c < D; c += n) {
      Packet<T, n> mine[own];
#pragma unroll
      for (int i = 0; i < own; ++i) mine[i] = load_packet<T, n>(x + row(i) * step + c);
#pragma unroll
      for (int j = 0; j < keys; ++j) {
        const Packet<T, n> other = load_packet<T, n>(y + key(j) * step + c);
#pragma unroll
        for (int i = 0; i < own; ++i) {
#pragma unroll
          for (int e = 0; e < n; ++e) scores[i][j] += mine[i].at[e] * other.at[e];
        }
      }
    }
  }

  // sums += scores y, y [rows, D]. `room` is only for this.
  __device__ static void add(T (&sums)[own][columns], const T (&scores)[own][keys], const T* y,
                             T* room) {
    constexpr int n = kPacket<T>;
    store(room, scores);
#pragma unroll 2
    for (int k = 0; k < rows; k += n) {
      Packet<T, n> mine[own];
#pragma unroll
      for (int i = 0; i < own; ++i) mine[i] = load_packet<T, n>(room + row(i) * score_step + k);
#pragma unroll
      for (int e = 0; e < n; ++e) {
#pragma unroll
        for (int c = 0; c < columns; c += packet) {
          const auto other = load_packet<T, packet>(y + (k + e) * step + column(c));
#pragma unroll
          for (int i = 0; i < own; ++i) {
#pragma unroll
            for (int j = 0; j < packet; ++j) sums[i][c + j] += mine[i].at[e] * other.at[j];
          }
        }
      }
    }
  }

 private:
  static constexpr int packet = columns < kPacket<T> ? columns : kPacket<T>;

  // Only the thread's half of a warp reads them again.
  __device__ static void store(T* room, const T (&scores)[own][keys]) {
    __syncwarp();  // what lay here before may still be read
#pragma unroll
    for (int i = 0; i < own; ++i) {
#pragma unroll
      for (int j = 0; j < keys; ++j) room[row(i) * score_step + key(j)] = scores[i][j];
    }
    __syncwarp();
  }
};

// On tensor cores: a warp has 16 rows of each product, held as multiply_add() has them. Scores go
// from one product into the next without leaving their registers: the keys 2 t and 2 t + 1 of a
// lane take the places t and t + 4 of eight, and the rows of y go along.
template <int D>
struct TensorTile {
  using T = float;
  static constexpr int size = D, rows = 64, own = 2, threads = rows / 16 * kWarp;
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

  __device__ static void score(float (&scores)[own][keys], const float* x, const float* y) {
    float sums[keys / 2][4] = {};
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
    for (int i = 0; i < own; ++i) {
#pragma unroll
      for (int n = 0; n < keys; ++n) scores[i][n] = sums[n / 2][2 * i + n % 2];
    }
  }

  __device__ static void add(float (&sums)[own][columns], const float (&scores)[own][keys],
                             const float* y, float*) {
#pragma unroll
    for (int k = 0; k < rows / 8; ++k) {
      float a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = to_tf32(scores[i % 2][2 * k + i / 2]);
      const float* from = y + (8 * k + 2 * t()) * step + g();
#pragma unroll
      for (int n = 0; n < columns / 2; ++n) {
        float c[4] = {sums[0][2 * n], sums[0][2 * n + 1], sums[1][2 * n], sums[1][2 * n + 1]};
        const float b[2] = {from[8 * n], from[8 * n + step]};
        multiply_add(c, a, b);
        sums[0][2 * n] = c[0];
        sums[0][2 * n + 1] = c[1];
        sums[1][2 * n] = c[2];
        sums[1][2 * n + 1] = c[3];
      }
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

// Whether rows of d numbers from each of the places can be read by packets.
template <class T, class... P>
bool packed_rows(int64_t d, P*... data) {
  return d % kPacket<T> == 0 && ((reinterpret_cast<uintptr_t>(data) % 16 == 0) && ...);
}

// f<Layout>() with the layout of the least tiles that hold d, which says whether the device has
// room for them; false where d is beyond the tiles. Plain<D> is the layout on CUDA cores.
template <class T, template <int> class Plain, class F>
bool dispatch_layout(int64_t d, F&& f) {
  auto of_size = [&]<int D>() {
    if constexpr (sizeof(T) == 4) {
      if (tensor_cores()) return f.template operator()<TensorTile<D>>();
    }
    return f.template operator()<Plain<D>>();
  };
  if (d <= 32) return of_size.template operator()<32>();
  if (d <= 64) return of_size.template operator()<64>();
  return d <= 128 && of_size.template operator()<128>();
}

// Sizes and visible keys of a call.
struct AttentionSizes {
  int64_t H, T, d, tiles;
  Widths widths;
  bool packed;
};

}  // namespace brine::cuda
