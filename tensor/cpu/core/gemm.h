// A packed matrix product in f32 for any strides, on the calling thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tensor/cpu/core/gemm_f64.h"
#include "tensor/cpu/core/vectors.h"
#include "tensor/kernels/kernel.h"

namespace brine::BRINE_CPU {

namespace packed {

constexpr int kBytes = kVectorBytes, kRows = kRegisters == 32 ? 14 : 6;
constexpr int kWidth = kBytes / int(sizeof(float)), kColumns = 2 * kWidth;
constexpr int64_t kDepth = 256;  // of a packed panel: kRows and kColumns of it stay in L1

// Slivers of `width` rows, depth first: out[s][p][r] = x(s width + r, p); missing rows are 0.
inline void pack(Strided<const float> x, int64_t n, int64_t depth, int width, float* out) {
  for (int64_t s = 0; s < n; s += width, out += width * depth) {
    int64_t rows = std::min<int64_t>(width, n - s);
    for (int64_t p = 0; p < depth; ++p) {
      const float* from = x.at(s, p);
      float* to = out + p * width;
      for (int64_t r = 0; r < rows; ++r) to[r] = from[r * x.row];
      for (int64_t r = rows; r < width; ++r) to[r] = 0;
    }
  }
}

// out [kRows, kColumns] = product of one sliver of each side.
inline void sliver(int64_t depth, const float* a, const float* b, float* out) {
  typedef float V __attribute__((vector_size(kBytes), aligned(sizeof(float))));
  constexpr int W = kWidth;
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
inline void gemm_packed(int64_t M, int64_t N, int64_t K, float alpha, Strided<const float> a,
                        Strided<const float> b, float beta, Strided<float> c) {
  constexpr int R = packed::kRows, C = packed::kColumns;
  constexpr int64_t kBlock = 16 * R;  // rows of a packed at a time: they stay in L2
  thread_local std::vector<float> rows, columns;
  int64_t depth = std::min(K, packed::kDepth);
  rows.resize(size_t(kBlock * depth));
  columns.resize(size_t((N + C - 1) / C * C * depth));
  for (int64_t k = 0; k < K; k += packed::kDepth) {
    int64_t deep = std::min(packed::kDepth, K - k);
    float keep = k == 0 ? beta : 1.0F;
    packed::pack({b.at(k, 0), b.column, b.row}, N, deep, C, columns.data());
    for (int64_t m = 0; m < M; m += kBlock) {
      int64_t block = std::min(kBlock, M - m);
      packed::pack({a.at(m, k), a.row, a.column}, block, deep, R, rows.data());
      for (int64_t j = 0; j < N; j += C) {
        for (int64_t i = 0; i < block; i += R) {
          float tile[R * C];
          packed::sliver(deep, rows.data() + i * deep, columns.data() + j * deep, tile);
          int64_t height = std::min<int64_t>(R, block - i), width = std::min<int64_t>(C, N - j);
          for (int64_t r = 0; r < height; ++r) {
            float* to = c.at(m + i + r, j);
            const float* from = tile + r * C;
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
