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

// A thread for each feature of a group of heads.
template <class T, class S>
__global__ void append_kernel(S* rows, const T* row, const int64_t* at, int64_t n, int64_t G,
                              int64_t R, int64_t m, int64_t K, int64_t units) {
  const int64_t i = piece();
  if (i >= n) return;
  const int64_t group = i / m, keys = at[group / G];
  const int64_t unit = math::unit_of_sums(keys + 1, K, units);
  S* feature = rows + group * R * m + i % m;
  if (unit > math::unit_of_sums(keys, K, units)) {
    const int64_t before = unit / 2, made = (keys + before - 1) / before;
    for (int64_t r = 0; r < made; r += 2) {
      const T next = r + 1 < made ? T(feature[(r + 1) * m]) : T(0);
      feature[r / 2 * m] = S(T(feature[r * m]) + next);
    }
  }
  S& to = feature[keys / unit * m];
  to = S(keys % unit ? T(to) + row[i] : row[i]);
}

}  // namespace

void append_to_units(Tensor rows, Tensor row, Tensor at, int64_t K, int64_t units) {
  const OnDevice keys(at, rows.device());
  dispatch_stored(row.dtype(), rows.dtype(), [&]<class T, class S>() {
    launch_each("append_to_units", row.numel(), append_kernel<T, S>, rows.data<S>(), row.data<T>(),
                keys.data<int64_t>(), row.numel(), rows.dim(1), rows.dim(2), rows.dim(3), K, units);
  });
}

void performer_prior_step(Tensor y, Tensor borders, Tensor at, Tensor scores, Tensor gain,
                          Tensor phi_q, Tensor phi_k, Tensor width, double floor, int64_t units) {
  dispatch_stored(y.dtype(), phi_k.dtype(), [&]<class T, class S>() {
    columns::column_step<T, S>(
        "performer_prior_step", borders, at, phi_q, phi_k, width, units, columns::StepRows::units,
        StepLogs<T>{y.data<T>(), scores.data<T>(), gain.data<T>(), phi_q.dim(1), floor});
  });
}

}  // namespace brine::cuda
