// Linear attention of one new token: its key is added to the running sums, then its query reads
// them.
#include <algorithm>

#include "tensor/cpu/core/pieces.h"
#include "tensor/cpu/core/vectors.h"
#include "tensor/kernels/estimator.h"

namespace brine::BRINE_CPU {
namespace {

// A strip of N vectors of all m rows: state += key values^T if kAdds, out = query . state / den.
template <int N, bool kAdds, class T>
void strip(T* out, T* state, const T* values, const T* key, const T* query, int64_t m, int64_t e,
           T share) {
  constexpr int W = kWidth<T>;
  Vector<T> value[N], sum[N] = {};
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) value[i] = load(values + i * W);
  for (int64_t j = 0; j < m; ++j, state += e) {
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) {
      Vector<T> row = load(state + i * W);
      if constexpr (kAdds) {
        row += key[j] * value[i];
        store(state + i * W, row);
      }
      sum[i] += query[j] * row;
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) store(out + i * W, share * sum[i]);
}

// Columns [begin, end) of the values, starting at `values`.
template <bool kAdds, class T>
void span(T* out, T* state, const T* values, const T* key, const T* query, int64_t m, int64_t e,
          int64_t n, T share) {
  constexpr int W = kWidth<T>;
  int64_t c = 0;
  for (; c + 4 * W <= n; c += 4 * W) {
    strip<4, kAdds>(out + c, state + c, values + c, key, query, m, e, share);
  }
  for (; c + W <= n; c += W)
    strip<1, kAdds>(out + c, state + c, values + c, key, query, m, e, share);
  for (; c < n; ++c) {
    T sum = 0;
    for (int64_t j = 0; j < m; ++j) {
      if (kAdds) state[j * e + c] += key[j] * values[c];
      sum += query[j] * state[j * e + c];
    }
    out[c] = share * sum;
  }
}

}  // namespace

void linear_attention_step(Tensor y, Tensor state, Tensor sums, Tensor phi_q, Tensor phi_k,
                           Tensor identity, Tensor v, Tensor at, double eps) {
  const int64_t B = state.dim(0), G = state.dim(1), m = state.dim(2), e = state.dim(3);
  const int64_t d = v.dim(3), columns = e - d, group = phi_q.dim(1) / G;
  dispatch_float(y.dtype(), [&]<class T>() {
    for_pieces(B * G, B * G * group * m * e, [&](int64_t i) {
      const T* k = phi_k.data<T>() + i * m;
      T* s = state.data<T>() + i * m * e;
      double* sum = sums.data<double>() + i * m;
      const T* id = identity.data<T>() + at.data<int64_t>()[i / G] * columns;
      const T* values = v.data<T>() + i * d;
#pragma omp simd
      for (int64_t j = 0; j < m; ++j) sum[j] += double(k[j]);
      for (int64_t h = i * group; h < (i + 1) * group; ++h) {
        const T* q = phi_q.data<T>() + h * m;
        double den = 0;
#pragma omp simd reduction(+ : den)
        for (int64_t j = 0; j < m; ++j) den += double(q[j]) * (sum[j] + eps);
        const T share = T(1 / den);
        T* out = y.data<T>() + h * e;
        auto all = [&]<bool kAdds>() {
          span<kAdds>(out, s, id, k, q, m, e, columns, share);
          span<kAdds>(out + columns, s + columns, values, k, q, m, e, d, share);
        };
        h == i* group ? all.template operator()<true>() : all.template operator()<false>();
      }
    });
  });
}

}  // namespace brine::BRINE_CPU
