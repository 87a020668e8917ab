// The prior of the scores: each column's share of a row's linear attention; of all
// rows, or of one new token.
#include "tensor/base/stored.h"
#include "tensor/cuda/estimator/column_products.cuh"
#include "tensor/cuda/estimator/column_step.cuh"
#include "tensor/kernels/estimator.h"

namespace brine::cuda {
namespace {

// log((w / n_c) share) of column c, which has `keys` keys; 0 where it has none.
template <class T, class Row>
__device__ T log_share(const Row& row, int64_t c, int64_t keys, double floor) {
  if (keys == 0) return T(0);
  const double share = row.product(c) / row.total();
  return math::log(T((share < floor ? floor : share) * (double(row.w) / double(keys))));
}

// scores + gain log(share).
template <class T>
struct AddLogs {
  const T *scores, *gain;
  double floor;

  template <class Row>
  __device__ T operator()(const Row& row, int64_t c, int64_t i) const {
    if (row.w == 0) return scores[i];
    return scores[i] + gain[row.n % row.at.heads] * log_share<T>(row, c, row.keys(c), floor);
  }
};

// The derivatives of the sum over columns of dy gain log(share) with respect to the products, and
// the row's part of the gain's gradient.
template <class T>
struct LogSlopes {
  const T *dy, *gain;
  double floor;
  double* parts;  // [B H, R]

  template <class Row>
  __device__ void operator()(const Row& row, double* share, int64_t i) const {
    const int64_t K = row.at.K;
    const double by = double(gain[row.n % row.at.heads]), least = floor * row.total();
    double sum = 0, dgain = 0;
    for (int64_t c = row.lane; c < K; c += kWarp) {
      const int64_t keys = row.keys(c);
      const double g = keys ? double(dy[i * K + c]) : 0.0, product = row.product(c);
      dgain += g * double(log_share<T>(row, c, keys, floor));
      const bool free = keys && product >= least;
      if (free) sum += g;
      share[c] = free ? by * g / product : 0.0;
    }
    sum = warp_sum(sum);
    dgain = warp_sum(dgain);
    if (row.lane == 0) {
      share[K] = by * sum / row.total();
      parts[i] = dgain;
    }
  }
  template <class Row>
  __device__ void unseen(const Row& row, int64_t i) const {
    if (row.lane == 0) parts[i] = 0;
  }
};

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

void performer_prior(Tensor y, Tensor scores, Tensor gain, Tensor phi_q, Tensor phi_k,
                     Visibility visible, ColumnGrid grid, double floor) {
  if (y.numel() == 0) return;
  dispatch_float(y.dtype(), [&]<class T>() {
    const DeviceWidths widths(visible, phi_q.dim(2), y.device());
    const auto at = columns::columns_of<T>(phi_q, phi_k, y.dim(3), grid, widths.get());
    columns::row_products("performer_prior", y, at,
                          AddLogs<T>{scores.data<T>(), gain.data<T>(), floor});
  });
}

void performer_prior_backward(Tensor dgain, Tensor dphi_q, Tensor dphi_k, Tensor dy, Tensor gain,
                              Tensor phi_q, Tensor phi_k, Visibility visible, ColumnGrid grid,
                              double floor) {
  if (dy.numel() == 0) return;
  const char* name = "performer_prior_backward";
  dispatch_float(dy.dtype(), [&]<class T>() {
    const DeviceWidths widths(visible, phi_q.dim(2), dy.device());
    const auto at = columns::columns_of<T>(phi_q, phi_k, dy.dim(3), grid, widths.get());
    const int64_t B = phi_q.dim(0);
    const Tensor parts = columns::numbers(B * at.heads * at.rows, dy.device());
    columns::row_products_backward(
        name, dphi_q, dphi_k, at,
        LogSlopes<T>{dy.data<T>(), gain.data<T>(), floor, parts.data<double>()});
    columns::add_gains(name, dgain, parts, B, at);
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
