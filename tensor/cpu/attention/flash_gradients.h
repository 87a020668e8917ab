// The pieces over which the gradients of queries are distributed, and their sum.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tensor/kernels/kernel.h"
#include "tensor/parallel.h"

namespace brine::BRINE_CPU {

// A head's tiles are distributed over pieces until there are this many tasks, so that threads
// finish at similar times; for short sequences this does not pay, because every piece needs another
// dq.
inline int64_t flash_pieces(int64_t heads, int64_t T) {
  constexpr int64_t kTasks = 32, kMost = 4, kLong = 1024;
  return T < kLong
             ? 1
             : std::clamp<int64_t>((kTasks + heads - 1) / std::max<int64_t>(1, heads), 1, kMost);
}

// Rows of queries of all heads, T of each; those of a piece have `wide` numbers.
struct PieceRows {
  int64_t rows, T, d, wide, pieces;
};

// dq [B, H, T, d] = the sum of the pieces' [B H, pieces, T, wide].
template <class T>
void add_pieces(T* dq, const T* parts, const PieceRows& at) {
  parallel_for(at.rows, 64, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* from = parts + (r / at.T * at.pieces * at.T + r % at.T) * at.wide;
      T* out = dq + r * at.d;
      std::copy_n(from, at.d, out);
      for (int64_t p = 1; p < at.pieces; ++p) {
#pragma omp simd
        for (int64_t c = 0; c < at.d; ++c) out[c] += from[p * at.T * at.wide + c];
      }
    }
  });
}

}  // namespace brine::BRINE_CPU
