// One query of each head against rows of a cache, which may be stored in 16 bits (S): they are
// widened in registers, once for up to four heads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tensor/cpu/core/pieces.h"
#include "tensor/cpu/core/softmax_row.h"
#include "tensor/cpu/core/stored_vectors.h"

namespace brine::BRINE_CPU {

constexpr int64_t kAhead = 16;  // rows that are fetched before they are needed

// f<n>(h) for heads [h, h + n), which share what a row is loaded for.
template <class F>
void by_heads(int64_t heads, F f) {
  int64_t h = 0;
  for (; h + 4 <= heads; h += 4) f.template operator()<4>(h);
  if (heads - h == 3) f.template operator()<3>(h);
  if (heads - h == 2) f.template operator()<2>(h);
  if (heads - h == 1) f.template operator()<1>(h);
}

// out[h step + j] = factor (x_h . rows[j]) for n rows of d numbers; x [H, d].
template <int H, class T, class S>
void dots(T* out, int64_t step, const T* x, const S* rows, int64_t n, int64_t d, T factor) {
  constexpr int W = kWidth<T>;
  for (int64_t j = 0; j < n; ++j, rows += d) {
    prefetch(rows + kAhead * d, d * int64_t(sizeof(S)));
    Vector<T> even[H] = {}, odd[H] = {};
    int64_t c = 0;
    for (; c + 2 * W <= d; c += 2 * W) {
      const Vector<T> a = load_as<T>(rows + c), b = load_as<T>(rows + c + W);
#pragma GCC unroll 4
      for (int h = 0; h < H; ++h) {
        even[h] += load(x + h * d + c) * a;
        odd[h] += load(x + h * d + c + W) * b;
      }
    }
    // One more vector rather than a loop over W numbers: compilers round such loops differently.
    if (c + W <= d) {
      for (int h = 0; h < H; ++h) even[h] += load(x + h * d + c) * load_as<T>(rows + c);
      c += W;
    }
#pragma GCC unroll 4
    for (int h = 0; h < H; ++h) {
      T sum = sum_of_vector<T, kVectorBytes>(even[h] + odd[h]);
      for (int64_t i = c; i < d; ++i) sum += x[h * d + i] * T(rows[i]);
      out[h * step + j] = factor * sum;
    }
  }
}

// Consecutive rows [first, first + count).
struct KeyRun {
  int64_t first, count;
};

// out[h d + c] of the channels [begin, end) = the sum over the rows of the runs, d numbers each, of
// weights[h step + j] rows[j][c], where j counts the rows.
template <int H, class T, class S, class Runs>
void weighted_sums(T* out, const T* weights, int64_t step, const S* rows, const Runs& runs,
                   int64_t d, int64_t begin, int64_t end) {
  constexpr int W = kWidth<T>, wide = kVectorBytes == 64 || H == 4 ? 2 : 4;
  auto sum = [&]<int N>(int64_t c) {
    Vector<T> sums[H][N] = {};
    const T* weight = weights;
    for (const KeyRun& run : runs) {
      const S* row = rows + run.first * d + c;
      for (int64_t j = 0; j < run.count; ++j, row += d, ++weight) {
        prefetch(row + kAhead * d, N * W * int64_t(sizeof(S)));
#pragma GCC unroll 4
        for (int i = 0; i < N; ++i) {
          const Vector<T> x = load_as<T>(row + i * W);
#pragma GCC unroll 4
          for (int h = 0; h < H; ++h) sums[h][i] += weight[h * step] * x;
        }
      }
    }
    for (int h = 0; h < H; ++h) {
      for (int i = 0; i < N; ++i) store(out + h * d + c + i * W, sums[h][i]);
    }
  };
  int64_t c = begin;
  for (; c + wide * W <= end; c += wide * W) sum.template operator()<wide>(c);
  for (; c + W <= end; c += W) sum.template operator()<1>(c);
  for (; c < end; ++c) {
    for (int h = 0; h < H; ++h) {
      T total = 0;
      const T* weight = weights + h * step;
      for (const KeyRun& run : runs) {
        for (int64_t j = run.first; j < run.first + run.count; ++j)
          total += *weight++ * T(rows[j * d + c]);
      }
      out[h * d + c] = total;
    }
  }
}

// Rows of a group, ascending.
struct KeyRuns {
  std::vector<KeyRun> runs;
  int64_t keys = 0;

  void clear() {
    runs.clear();
    keys = 0;
  }
  void add(int64_t first, int64_t count) {
    keys += count;
    if (!runs.empty() && runs.back().first + runs.back().count == first) {
      runs.back().count += count;
    } else {
      runs.push_back({first, count});
    }
  }
};

// y [groups, heads, d] = softmax(scale q . k_j) v_j over the rows of each group, of its `positions`
// in k and v. No row: 0.
//
// Keys are divided over threads by rows, values by channels, so that a few groups occupy more
// threads; no sum depends on where they are cut.
template <class T, class S>
void attend_cached(T* y, const T* q, const S* k, const S* v, const std::vector<KeyRuns>& groups,
                   int64_t heads, int64_t positions, int64_t d, T scale) {
  constexpr int64_t kRows = 256, kChannels = 32;
  struct Piece {
    size_t group;
    KeyRun rows;
    T* scores;
  };
  thread_local std::vector<T> memory;
  thread_local std::vector<Piece> pieces;
  thread_local std::vector<T*> scores;
  int64_t keys = 0;
  for (const KeyRuns& group : groups) keys += group.keys;
  const int64_t work = keys * heads * d;
  memory.resize(size_t(keys * heads));
  pieces.clear();
  scores.clear();
  T* to = memory.data();
  for (size_t g = 0; g < groups.size(); ++g) {
    scores.push_back(to);
    int64_t j = 0;
    for (const KeyRun& run : groups[g].runs) {
      for (int64_t i = 0; i < run.count; i += kRows) {
        const int64_t count = std::min(kRows, run.count - i);
        pieces.push_back({g, {run.first + i, count}, to + j});
        j += count;
      }
    }
    to += heads * groups[g].keys;
  }
  // Other threads have memory of their own under these names.
  const Piece* piece = pieces.data();
  T* const* of_group = scores.data();
  for_pieces(int64_t(pieces.size()), work, [&](int64_t i) {
    const Piece& at = piece[i];
    const int64_t g = int64_t(at.group), step = groups[at.group].keys;
    by_heads(heads, [&]<int H>(int64_t h) {
      dots<H>(at.scores + h * step, step, q + (g * heads + h) * d,
              k + (g * positions + at.rows.first) * d, at.rows.count, d, scale);
    });
  });
  for_pieces(int64_t(groups.size()) * heads, keys * heads * 8, [&](int64_t i) {
    const size_t g = size_t(i / heads);
    const int64_t n = groups[g].keys;
    if (n > 0) softmax_in_place(of_group[g] + i % heads * n, n);
  });
  const int64_t parts = (d + kChannels - 1) / kChannels;
  for_pieces(int64_t(groups.size()) * parts, work, [&](int64_t i) {
    const int64_t g = i / parts, begin = i % parts * kChannels;
    const KeyRuns& group = groups[size_t(g)];
    by_heads(heads, [&]<int H>(int64_t h) {
      weighted_sums<H>(y + (g * heads + h) * d, of_group[g] + h * group.keys, group.keys,
                       v + g * positions * d, group.runs, d, begin, std::min(d, begin + kChannels));
    });
  });
}

}  // namespace brine::BRINE_CPU
