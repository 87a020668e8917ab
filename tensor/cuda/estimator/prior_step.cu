// The prior of one new token.
#include "tensor/base/stored.h"
#include "tensor/cuda/estimator/column_step.cuh"
#include "tensor/kernels/estimator.h"

namespace brine::cuda {
namespace {

template <class T>
struct StepLogs {
  T* y;  // [B H, K]
  const T *scores, *gain;
  int64_t H;
  double floor;

  __device__ void operator()(const columns::StepRow& row, int64_t c) const {
    const int64_t keys = row.keys(c), i = row.head * row.K + c;
    const double share = row.product(c) / row.total();
    const double mean = (share < floor ? floor : share) * (double(row.w) / double(keys ? keys : 1));
    y[i] = scores[i] + gain[row.head % H] * math::log(keys ? T(mean) : T(1));
  }
};

}  // namespace

void performer_prior_step(Tensor y, Tensor borders, Tensor at, Tensor scores, Tensor gain,
                          Tensor phi_q, Tensor phi_k, Tensor width, double floor, int64_t units) {
  dispatch_stored(y.dtype(), phi_k.dtype(), [&]<class T, class S>() {
    columns::column_step<T, S>(
        "performer_prior_step", borders, at, phi_q, phi_k, width, units, columns::StepRows::units,
        StepLogs<T>{y.data<T>(), scores.data<T>(), gain.data<T>(), phi_q.dim(1), floor});
  });
}

}  // namespace brine::cuda
