// The scores of mean keys: a row's query times the mean key of each of its columns;
// of all rows, or of one new token.
#include <cmath>

#include "tensor/base/stored.h"
#include "tensor/cuda/estimator/column_products.cuh"
#include "tensor/cuda/estimator/column_step.cuh"
#include "tensor/kernels/estimator.h"

namespace brine::cuda {
namespace {

// The product of a row with the mean key of a column, scaled; 0 where it owns no key.
template <class Row>
__device__ double mean_score(const Row& row, int64_t c, double scale) {
  const int64_t keys = row.w ? row.keys(c) : 0;
  return keys ? row.product(c) * scale / double(keys) : 0.0;
}

template <class T>
struct Means {
  const T *scores, *gain;
  double scale;

  template <class Row>
  __device__ T operator()(const Row& row, int64_t c, int64_t i) const {
    return scores[i] + gain[row.n % row.at.heads] * T(mean_score(row, c, scale));
  }
};

template <class T>
struct MeanSlopes {
  const T *dy, *gain;
  double scale;
  double* parts;  // [B H, R] of the gain's gradient

  template <class Row>
  __device__ void operator()(const Row& row, double* share, int64_t i) const {
    const int64_t K = row.at.K;
    const double by = scale * double(gain[row.n % row.at.heads]);
    double sum = 0;
    for (int64_t c = row.lane; c < K; c += kWarp) {
      const int64_t keys = row.keys(c);
      share[c] = keys ? double(dy[i * K + c]) * by / double(keys) : 0.0;
      if (keys) sum += double(dy[i * K + c]) * mean_score(row, c, scale);
    }
    sum = warp_sum(sum);
    if (row.lane != 0) return;
    share[K] = 0;
    parts[i] = sum;
  }
  template <class Row>
  __device__ void unseen(const Row& row, int64_t i) const {
    if (row.lane == 0) parts[i] = 0;
  }
};

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

void pooled_prior(Tensor y, Tensor scores, Tensor gain, Tensor q, Tensor k, Visibility visible,
                  ColumnGrid grid) {
  if (y.numel() == 0) return;
  dispatch_float(y.dtype(), [&]<class T>() {
    const DeviceWidths widths(visible, q.dim(2), y.device());
    const auto at = columns::columns_of<T>(q, k, y.dim(3), grid, widths.get());
    columns::row_products("pooled_prior", y, at,
                          Means<T>{scores.data<T>(), gain.data<T>(), 1 / std::sqrt(double(at.m))});
  });
}

void pooled_prior_backward(Tensor dgain, Tensor dq, Tensor dk, Tensor dy, Tensor gain, Tensor q,
                           Tensor k, Visibility visible, ColumnGrid grid) {
  if (dy.numel() == 0) return;
  const char* name = "pooled_prior_backward";
  dispatch_float(dy.dtype(), [&]<class T>() {
    const DeviceWidths widths(visible, q.dim(2), dy.device());
    const auto at = columns::columns_of<T>(q, k, dy.dim(3), grid, widths.get());
    const int64_t B = q.dim(0);
    const Tensor parts = columns::numbers(B * at.heads * at.rows, dy.device());
    columns::row_products_backward(
        name, dq, dk, at,
        MeanSlopes<T>{dy.data<T>(), gain.data<T>(), 1 / std::sqrt(double(at.m)),
                      parts.data<double>()});
    columns::add_gains(name, dgain, parts, B, at);
  });
}

void pooled_scores_step(Tensor y, Tensor borders, Tensor at, Tensor q, Tensor k, Tensor width,
                        int64_t units) {
  dispatch_stored(y.dtype(), k.dtype(), [&]<class T, class S>() {
    columns::column_step<T, S>("pooled_scores_step", borders, at, q, k, width, units,
                               columns::StepRows::keys,
                               StepMeans<T>{y.data<T>(), 1 / std::sqrt(double(q.dim(3)))});
  });
}

}  // namespace brine::cuda
