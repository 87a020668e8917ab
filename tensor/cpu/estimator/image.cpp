// The softmax over the columns of an image.
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

}  // namespace brine::BRINE_CPU
