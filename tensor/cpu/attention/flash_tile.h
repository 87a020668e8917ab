// Code shared by both directions of tiled attention.
#pragma once

#include <vector>

#include "tensor/cpu/core/register_tile.h"

namespace brine::BRINE_CPU {

// One step of a transposition: blocks of h x h on the diagonal stay, the others are exchanged.
template <int h, class T, int... j>
[[gnu::always_inline]] inline void swap_blocks(Vector<T>& x, Vector<T>& y,
                                               std::integer_sequence<int, j...>) {
  constexpr int W = kWidth<T>;
  const Vector<T> a = x, b = y;
  x = __builtin_shufflevector(a, b, (j & h ? W + j - h : j)...);
  y = __builtin_shufflevector(a, b, (j & h ? W + j : j + h)...);
}

template <int h = 1, class T>
[[gnu::always_inline]] inline void transpose(Vector<T> (&x)[kWidth<T>]) {
#pragma GCC unroll 16
  for (int i = 0; i < kWidth<T>; ++i) {
    if (!(i & h)) swap_blocks<h, T>(x[i], x[i + h], std::make_integer_sequence<int, kWidth<T>>());
  }
  if constexpr (2 * h < kWidth<T>) transpose<2 * h, T>(x);
}

// to [columns, rows] = from^T, row c times factor(c); from [rows, columns]. `inward`: into scratch
// memory whose rows are padded with 0 to whole vectors; otherwise from such memory.
template <bool inward, class T, class Factor>
void transpose(Lanes<T> to, Lanes<const T> from, int64_t rows, int64_t columns, Factor factor) {
  constexpr int W = kWidth<T>;
  for (int64_t c = 0; c < columns; c += W) {
    const int64_t width = std::min<int64_t>(W, columns - c);
    for (int64_t r = 0; r < rows; r += W) {
      const int64_t height = std::min<int64_t>(W, rows - r);
      Vector<T> x[W];
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i) {
        const T* row = from.data + (r + i) * from.step + c;
        x[i] = Vector<T>{};
        if (i >= height) continue;
        if (inward && width < W) {
          std::memcpy(&x[i], row, size_t(width) * sizeof(T));
        } else {
          x[i] = load(row);
        }
      }
      transpose<1, T>(x);
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i) {
        if (i >= width) continue;
        T* row = to.data + (c + i) * to.step + r;
        const Vector<T> y = x[i] * factor(c + i);
        if (!inward && height < W) {
          std::memcpy(row, &y, size_t(height) * sizeof(T));
        } else {
          store(row, y);
        }
      }
    }
  }
}

// Scratch memory for a piece of work, one per thread and use. Every part starts at a cache line:
// vectors that cross cache lines cost a third of the speed.
template <class T>
class Scratch {
 public:
  // Invalidates earlier parts. n = the total size of all parts, `parts` their number.
  void reserve(int64_t n, int64_t parts) {
    used_ = 0;
    const size_t wanted = size_t(n) / kPerLine + size_t(parts);
    if (lines_.size() < wanted) lines_.resize(wanted);
  }
  T* take(int64_t n) {
    T* at = reinterpret_cast<T*>(lines_.data() + used_);
    used_ += (size_t(n) + kPerLine - 1) / kPerLine;
    return at;
  }

 private:
  struct Line {
    alignas(64) unsigned char bytes[64];
  };
  static constexpr size_t kPerLine = sizeof(Line) / sizeof(T);
  std::vector<Line> lines_;
  size_t used_ = 0;
};

}  // namespace brine::BRINE_CPU
