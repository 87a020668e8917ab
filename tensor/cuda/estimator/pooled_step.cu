// The scores of mean keys for one new token.
#include <cmath>

#include "tensor/base/stored.h"
#include "tensor/cuda/estimator/column_step.cuh"
#include "tensor/kernels/estimator.h"

namespace brine::cuda {
namespace {

template <class T>
struct StepMeans {
  T* y;  // [B H, K]
  double scale;

  __device__ void operator()(const columns::StepRow& row, int64_t c) const {
    const int64_t keys = row.keys(c);
    y[row.head * row.K + c] = keys ? T(row.product(c) * scale / double(keys)) : T(0);
  }
};

}  // namespace

void pooled_scores_step(Tensor y, Tensor borders, Tensor at, Tensor q, Tensor k, Tensor width,
                        int64_t units) {
  dispatch_stored(y.dtype(), k.dtype(), [&]<class T, class S>() {
    columns::column_step<T, S>("pooled_scores_step", borders, at, q, k, width, units,
                               columns::StepRows::keys,
                               StepMeans<T>{y.data<T>(), 1 / std::sqrt(double(q.dim(3)))});
  });
}

}  // namespace brine::cuda
