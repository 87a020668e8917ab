// The softmax over columns, and an identity by rows.
#include <limits>

#include "tensor/base/parallel.h"
#include "tensor/cpu/core/pieces.h"
#include "tensor/cpu/core/softmax_row.h"
#include "tensor/kernels/estimator.h"
#include "tensor/mask/csr.h"

namespace brine::BRINE_CPU {

void column_softmax(Tensor y, Tensor scores, Visibility visible) {
  dispatch_float(y.dtype(), [&]<class T>() {
    const int64_t H = y.dim(1), tokens = y.dim(2), K = y.dim(3);
    const RowWidths widths(visible, tokens);
    const T* from = scores.data<T>();
    T* to = y.data<T>();
    parallel_for(y.rows(), std::max<int64_t>(1, kGrain / K), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* x = from + r * K;
        T* out = to + r * K;
        const int64_t w = widths(r / (H * tokens), r % tokens);
        if (w >= K) {
          softmax_row(out, x, K);
          continue;
        }
        // Columns without keys get -inf: their exp is 0.
        for (int64_t c = 0; c < K; ++c) {
          const bool owns = math::column_begin(c + 1, w, K) > math::column_begin(c, w, K);
          out[c] = owns ? x[c] : -std::numeric_limits<T>::infinity();
        }
        if (w == 0) {
          std::fill(out, out + K, T(0));
          continue;
        }
        softmax_in_place(out, K);
      }
    });
  });
}

void resampled_identity(Tensor y, Tensor lengths, bool nearest) {
  const int64_t T = y.dim(1), d = y.dim(2);
  const RowWidths widths({.causal = false, .lengths = lengths}, T);
  dispatch_float(y.dtype(), [&]<class F>() {
    F* out = y.data<F>();
    parallel_for(y.dim(0) * T, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, d)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t r = begin; r < end; ++r) {
                     const int64_t L = widths.valid(r / T), p = r % T;
                     for (int64_t c = 0; c < d; ++c) {
                       out[r * d + c] =
                           p < L ? F(math::resampled_identity(p, c, L, d, nearest)) : F(0);
                     }
                   }
                 });
  });
}

}  // namespace brine::BRINE_CPU
