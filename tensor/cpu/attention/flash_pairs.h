// Tiled attention on inputs in bf16, multiplied as pairs (pair_tile.h): the conversions that both
// directions share.
//
// What a product reads by rows are rows of bf16 as they are, or transposed once for all tiles; what
// it reads by lanes is made for each tile.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "tensor/cpu/attention/flash_tile.h"
#include "tensor/cpu/core/pair_tile.h"
#include "tensor/cpu/core/pieces.h"
#include "tensor/mask/csr.h"
#include "tensor/types.h"

namespace brine::BRINE_CPU {

// Whether heads of this size are multiplied as pairs.
inline bool takes_pairs(int64_t d) { return d % 16 == 0 && pair_tile::is_available(); }

// Rows of bf16 as words of two neighbours.
inline const uint32_t* words(const bf16* x) { return reinterpret_cast<const uint32_t*>(x); }

constexpr int64_t kPairLanes = 16;
inline int64_t whole_lanes(int64_t n) { return (n + kPairLanes - 1) / kPairLanes * kPairLanes; }

// The pair of two numbers, rounded to the nearest even.
inline uint32_t rounded_word(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x), nan = (u & 0x7fffffffu) > 0x7f800000u;
  return nan ? u | 0x400000u : u + 0x7fffu + ((u >> 16) & 1);
}
inline uint32_t pair_of(float low, float high) {
  return (rounded_word(low) >> 16) | (rounded_word(high) & 0xffff0000u);
}

// to [columns, whole_lanes(rows)] = from^T, both of words; the lanes from `rows` on are 0.
inline void transpose_words(uint32_t* to, int64_t to_step, const uint32_t* from, int64_t from_step,
                            int64_t rows, int64_t columns) {
  constexpr int W = kWidth<float>;
  for (int64_t c = 0; c < columns; c += W) {
    const int64_t width = std::min<int64_t>(W, columns - c);
    for (int64_t r = 0; r < whole_lanes(rows); r += W) {
      Vector<float> x[W];
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i) {
        x[i] = Vector<float>{};
        if (r + i < rows) {
          std::memcpy(&x[i], from + (r + i) * from_step + c, size_t(width) * sizeof(uint32_t));
        }
      }
      transpose<1, float>(x);
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i) {
        if (i < width) std::memcpy(to + (c + i) * to_step + r, &x[i], sizeof(x[i]));
      }
    }
  }
}

// to [(rows + 1) / 2, d] = the pairs of neighbouring rows of from [rows, d]; a row that has no
// neighbour gets 0.
inline void pair_rows(uint32_t* to, const bf16* from, int64_t rows, int64_t d) {
  for (int64_t r = 0; r < rows; r += 2, to += d, from += 2 * d) {
    const bf16* next = from + d;
    if (r + 1 < rows) {
#pragma omp simd
      for (int64_t c = 0; c < d; ++c) {
        to[c] = uint32_t(from[c].bits) | (uint32_t(next[c].bits) << 16);
      }
    } else {
      for (int64_t c = 0; c < d; ++c) to[c] = from[c].bits;
    }
  }
}

// to [keys / 2, lanes] = the pairs of neighbouring rows of s [keys, lanes], rows of both `step`
// apart.
inline void pair_keys(uint32_t* to, const float* s, int64_t keys, int64_t lanes, int64_t step) {
  for (int64_t n = 0; n < keys; n += 2, to += step, s += 2 * step) {
    const float* next = s + step;
#pragma omp simd
    for (int64_t m = 0; m < lanes; ++m) to[m] = pair_of(s[m], next[m]);
  }
}

// Words of a row of n numbers that are transposed: whole vectors of pairs.
inline int64_t words_of(int64_t n) { return whole_lanes((n + 1) / 2); }

// to [d, words_of(room)] = the pairs along the rows of from [rows, d], transposed, for rows <=
// room; what is beyond is 0.
inline void transpose_pairs(uint32_t* to, int64_t room, const bf16* from, int64_t rows, int64_t d) {
  const int64_t step = words_of(room);
  thread_local Scratch<uint32_t> scratch;
  scratch.reserve(kPairLanes * d, 1);
  uint32_t* pairs = scratch.take(kPairLanes * d);
  int64_t r = 0;
  for (; r < rows; r += 2 * kPairLanes) {
    const int64_t count = std::min(2 * kPairLanes, rows - r);
    pair_rows(pairs, from + r * d, count, d);
    transpose_words(to + r / 2, step, pairs, d, (count + 1) / 2, d);
  }
  for (int64_t c = 0; r / 2 < step && c < d; ++c) {
    std::fill(to + c * step + r / 2, to + (c + 1) * step, 0u);
  }
}

// [B H, d, 2 words_of(T)]: the transposed pairs of the valid rows of every head of x [B, H, T, d].
inline Tensor transposed_heads(const Tensor& x, const RowWidths& widths) {
  const int64_t H = x.dim(1), heads = x.dim(0) * H, T = x.dim(2), d = x.dim(3);
  const int64_t size = d * words_of(T);
  const Tensor to = Tensor::empty({heads, d, 2 * words_of(T)}, Dtype::bf16);
  auto* pairs = reinterpret_cast<uint32_t*>(to.data<bf16>());
  for_pieces(heads, heads * T * d, [&](int64_t n) {
    transpose_pairs(pairs + n * size, T, x.data<bf16>() + n * T * d, widths.valid(n / H), d);
  });
  return to;
}

// flash_attention() and its gradients on inputs in bf16 (tensor/kernels/attention.h), where
// takes_pairs().
void flash_attention_pairs(Tensor y, Tensor lse, Tensor q, Tensor k, Tensor v, Visibility visible,
                           double scale);
void flash_attention_pairs_backward(Tensor dq, Tensor dk, Tensor dv, Tensor dy, Tensor q, Tensor k,
                                    Tensor v, Tensor y, Tensor lse, Visibility visible,
                                    double scale);

}  // namespace brine::BRINE_CPU
