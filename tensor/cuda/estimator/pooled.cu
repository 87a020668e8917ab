// The scores of mean keys: a row's query times the mean key of each of its columns.
#include <cmath>

#include "tensor/cuda/estimator/column_sums_backward.cuh"
#include "tensor/kernels/estimator.h"

namespace brine::cuda {
namespace {

using columns::Row;

// The product with the mean key, scaled; 0 where a column owns no key.
template <class T>
struct Means {
  double scale;

  __device__ T operator()(const Row<T>& row, int64_t c, int64_t) const {
    const int64_t own = row.w ? row.keys(c) : 0;
    return own ? T(row.product(c) * scale / double(own)) : T(0);
  }
};

template <class T>
struct MeanSlopes {
  const T* dy;
  double scale;

  __device__ void operator()(const Row<T>& row, double* share, int64_t i) const {
    const int64_t K = row.at.K;
    for (int64_t c = row.lane; c < K; c += kWarp) {
      const int64_t own = row.keys(c);
      share[c] = own ? double(dy[i * K + c]) * scale / double(own) : 0.0;
    }
    if (row.lane == 0) share[K] = 0;
  }
  __device__ void unseen(const Row<T>&, int64_t) const {}
};

}  // namespace

void pooled_scores(Tensor y, Tensor q, Tensor k, Visibility visible, int64_t step) {
  if (y.numel() == 0) return;
  dispatch_float(y.dtype(), [&]<class T>() {
    const DeviceWidths widths(visible, q.dim(2), y.device());
    const auto at = columns::columns_of<T>(q, k, y.dim(3), step, widths.get());
    columns::column_products("pooled_scores", y, at, Means<T>{1 / std::sqrt(double(at.m))});
  });
}

void pooled_scores_backward(Tensor dq, Tensor dk, Tensor dy, Tensor q, Tensor k, Visibility visible,
                            int64_t step) {
  if (dy.numel() == 0) return;
  dispatch_float(dy.dtype(), [&]<class T>() {
    const DeviceWidths widths(visible, q.dim(2), dy.device());
    const auto at = columns::columns_of<T>(q, k, dy.dim(3), step, widths.get());
    columns::column_products_backward("pooled_scores_backward", dq, dk, at,
                                      MeanSlopes<T>{dy.data<T>(), 1 / std::sqrt(double(at.m))});
  });
}

}  // namespace brine::cuda
