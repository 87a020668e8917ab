// A packed matrix product for any strides and both computing types, on the calling thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tensor/kernels/kernel.h"

namespace brine::BRINE_CPU {

// A matrix anywhere in memory: element (i, j) is data[i row + j column].
template <class T>
struct Strided {
  T* data = nullptr;
  int64_t row = 0, column = 0;
  T* at(int64_t i, int64_t j) const { return data + i * row + j * column; }
};

namespace packed {

// Vectors as wide as the registers of the target CPU of this source.
#ifdef __AVX512F__
constexpr int kBytes = 64, kRows = 14;
#else
constexpr int kBytes = 32, kRows = 6;
#endif
constexpr int64_t kDepth = 256;  // of a packed panel: kRows and kColumns of it stay in L1

template <class T>
constexpr int kColumns = 2 * kBytes / int(sizeof(T));

// Slivers of `width` rows, depth first: out[s][p][r] = x(s width + r, p); missing rows are 0.
template <class T>
void pack(Strided<const T> x, int64_t n, int64_t depth, int width, T* out) {
  for (int64_t s = 0; s < n; s += width, out += width * depth) {
    int64_t rows = std::min<int64_t>(width, n - s);
    for (int64_t p = 0; p < depth; ++p) {
      const T* from = x.at(s, p);
      T* to = out + p * width;
      for (int64_t r = 0; r < rows; ++r) to[r] = from[r * x.row];
      for (int64_t r = rows; r < width; ++r) to[r] = 0;
    }
  }
}

// out [kRows, kColumns] = product of one sliver of each side.
template <class T>
void sliver(int64_t depth, const T* a, const T* b, T* out) {
  typedef T V __attribute__((vector_size(kBytes), aligned(sizeof(T))));
  constexpr int W = kBytes / int(sizeof(T));
  V c[kRows][2] = {};
  for (int64_t p = 0; p < depth; ++p, a += kRows, b += 2 * W) {
    V b0 = *reinterpret_cast<const V*>(b), b1 = *reinterpret_cast<const V*>(b + W);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      V x = a[i] - V{};
      c[i][0] += x * b0;
      c[i][1] += x * b1;
    }
  }
  for (int i = 0; i < kRows; ++i) {
    *reinterpret_cast<V*>(out + 2 * i * W) = c[i][0];
    *reinterpret_cast<V*>(out + (2 * i + 1) * W) = c[i][1];
  }
}

}  // namespace packed

// c [M, N] = alpha a [M, K] b [K, N] + beta c; c is not read when beta = 0. Columns of c are
// adjacent.
template <class T>
void gemm_packed(int64_t M, int64_t N, int64_t K, T alpha, Strided<const T> a, Strided<const T> b,
                 T beta, Strided<T> c) {
  constexpr int R = packed::kRows, C = packed::kColumns<T>;
  constexpr int64_t kBlock = 16 * R;  // rows of a packed at a time: they stay in L2
  thread_local std::vector<T> rows, columns;
  int64_t depth = std::min(K, packed::kDepth);
  rows.resize(size_t(kBlock * depth));
  columns.resize(size_t((N + C - 1) / C * C * depth));
  for (int64_t k = 0; k < K; k += packed::kDepth) {
    int64_t deep = std::min(packed::kDepth, K - k);
    T keep = k == 0 ? beta : T(1);
    packed::pack<T>({b.at(k, 0), b.column, b.row}, N, deep, C, columns.data());
    for (int64_t m = 0; m < M; m += kBlock) {
      int64_t block = std::min(kBlock, M - m);
      packed::pack<T>({a.at(m, k), a.row, a.column}, block, deep, R, rows.data());
      for (int64_t j = 0; j < N; j += C) {
        for (int64_t i = 0; i < block; i += R) {
          T tile[R * C];
          packed::sliver(deep, rows.data() + i * deep, columns.data() + j * deep, tile);
          int64_t height = std::min<int64_t>(R, block - i), width = std::min<int64_t>(C, N - j);
          for (int64_t r = 0; r < height; ++r) {
            T* to = c.at(m + i + r, j);
            const T* from = tile + r * C;
            if (keep == 0) {
              for (int64_t q = 0; q < width; ++q) to[q] = alpha * from[q];
            } else {
              for (int64_t q = 0; q < width; ++q) to[q] = alpha * from[q] + keep * to[q];
            }
          }
        }
      }
    }
  }
}

}  // namespace brine::BRINE_CPU
