// Attention of one new query per sequence over cached keys and values, and the cache updates.
//
// The cost is that of reading the keys and values once for each head of queries. Rows stored in 16
// bits (S) are widened in registers.
#include <algorithm>
#include <vector>

#include "tensor/cpu/core/pieces.h"
#include "tensor/cpu/core/softmax_row.h"
#include "tensor/cpu/core/stored_vectors.h"
#include "tensor/kernels/attention.h"
#include "tensor/stored.h"

namespace brine::BRINE_CPU {
namespace {

// out[j] = factor (x . rows[j]) for n rows of d numbers.
template <class T, class S>
void dots(T* out, const T* x, const S* rows, int64_t n, int64_t d, T factor) {
  constexpr int W = kWidth<T>;
  for (int64_t j = 0; j < n; ++j, rows += d) {
    Vector<T> even = {}, odd = {};
    int64_t c = 0;
    for (; c + 2 * W <= d; c += 2 * W) {
      even += load(x + c) * load_as<T>(rows + c);
      odd += load(x + c + W) * load_as<T>(rows + c + W);
    }
    // One more vector rather than W numbers in a loop that compilers round in ways of their own.
    if (c + W <= d) even += load(x + c) * load_as<T>(rows + c), c += W;
    T sum = sum_of_vector<T, kVectorBytes>(even + odd);
    for (; c < d; ++c) sum += x[c] * T(rows[c]);
    out[j] = factor * sum;
  }
}

// out[0..N W) = sum_j weights[j] rows[j], rows d apart.
template <int N, class T, class S>
void weighted(T* out, const T* weights, const S* rows, int64_t n, int64_t d) {
  constexpr int W = kWidth<T>;
  Vector<T> sum[N] = {};
  for (int64_t j = 0; j < n; ++j, rows += d) {
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) sum[i] += weights[j] * load_as<T>(rows + i * W);
  }
  for (int i = 0; i < N; ++i) store(out + i * W, sum[i]);
}

template <class T, class S>
void weighted_sum(T* out, const T* weights, const S* rows, int64_t n, int64_t d) {
  constexpr int W = kWidth<T>;
  int64_t c = 0;
  for (; c + 4 * W <= d; c += 4 * W) weighted<4>(out + c, weights, rows + c, n, d);
  for (; c + W <= d; c += W) weighted<1>(out + c, weights, rows + c, n, d);
  for (; c < d; ++c) {
    T sum = 0;
    for (int64_t j = 0; j < n; ++j) sum += weights[j] * T(rows[j * d + c]);
    out[c] = sum;
  }
}

}  // namespace

void append_row(Tensor cache, Tensor row, Tensor at) {
  const int64_t B = cache.dim(0), H = cache.dim(1), S = cache.dim(2), d = cache.dim(3);
  dispatch_stored(row.dtype(), cache.dtype(), [&]<class T, class Stored>() {
    for (int64_t b = 0; b < B; ++b) {
      Stored* to = cache.data<Stored>() + (b * H * S + at.data<int64_t>()[b]) * d;
      const T* from = row.data<T>() + b * H * d;
      for (int64_t h = 0; h < H; ++h, from += d, to += S * d) {
        for (int64_t c = 0; c < d; ++c) to[c] = Stored(from[c]);
      }
    }
  });
}

void cached_attention(Tensor y, Tensor q, Tensor k, Tensor v, Tensor first, Tensor last,
                      double scale) {
  const int64_t B = q.dim(0), H = q.dim(1), S = k.dim(2), d = k.dim(3);
  const int64_t group = H / k.dim(1);  // heads that share keys and values
  const int64_t *begin = first.data<int64_t>(), *end = last.data<int64_t>();
  int64_t work = 0;
  for (int64_t b = 0; b < B; ++b) work += (end[b] - begin[b]) * H * d;
  dispatch_stored(y.dtype(), k.dtype(), [&]<class T, class Stored>() {
    for_pieces(B * H, work, [&](int64_t i) {
      const int64_t b = i / H, n = end[b] - begin[b];
      const int64_t place = (i / group * S + begin[b]) * d;
      T* out = y.data<T>() + i * d;
      if (n <= 0) return (void)std::fill_n(out, d, T(0));
      thread_local std::vector<T> memory;
      memory.resize(size_t(n));
      T* p = memory.data();
      dots(p, q.data<T>() + i * d, k.data<Stored>() + place, n, d, T(scale));
      softmax_in_place(p, n);
      weighted_sum(out, p, v.data<Stored>() + place, n, d);
    });
  });
}

}  // namespace brine::BRINE_CPU
