// Losses over the vocabulary: rows are read once, with the running maximum and the sum of
// exponentials relative to it on every thread. The distillation loss is in loss_kl.cu.
#include "tensor/cuda/core/rows.cuh"
#include "tensor/cuda/dense/logits.cuh"
#include "tensor/kernels/dense.h"

namespace brine::cuda {
namespace {

template <class Row, class T>
__global__ void log_sum_exp_kernel(T* y, const T* x, int64_t rows, int64_t V) {
  const int64_t r = Row::row();
  if (r >= rows) return;
  const double total = row_lse<Row>(x + r * V, V);
  if (Row::lane() == 0) y[r] = T(total);
}

template <class Row, class T>
__global__ void cross_entropy_kernel(T* loss, T* lse, const T* logits, const int32_t* target,
                                     int64_t rows, int64_t V) {
  const int64_t r = Row::row();
  if (r >= rows) return;
  const int32_t id = target[r];
  const double total = id < 0 ? 0 : row_lse<Row>(logits + r * V, V);
  if (Row::lane() == 0) {
    lse[r] = T(total);
    loss[r] = id < 0 ? T(0) : T(total - double(logits[r * V + id]));
  }
}

// dlogits may be logits: the thread that writes an element is the one that reads it.
template <class Row, class T>
__global__ void cross_entropy_backward_kernel(T* dlogits, const T* dloss, const T* logits,
                                              const T* lse, const int32_t* target, int64_t rows,
                                              int64_t V) {
  const int64_t r = Row::row();
  if (r >= rows) return;
  dlogits += r * V;
  logits += r * V;
  const T g = dloss[r], total = lse[r];
  const int32_t id = target[r];
  const bool counts = id >= 0 && g != 0;
  for (int64_t i = Row::lane(); i < V; i += Row::size()) {
    T d = 0;
    if (counts) d = math::exp_nonpositive(logits[i] - total) * g - (i == id ? g : T(0));
    dlogits[i] = d;
  }
}

}  // namespace

void log_sum_exp(Tensor y, Tensor x) {
  const int64_t rows = x.rows(), V = x.dim(-1);
  dispatch_float(x.dtype(), [&]<class T>() {
    launch_rows("log_sum_exp", rows, V, log_sum_exp_kernel<RowWarp, T>,
                log_sum_exp_kernel<RowBlock, T>, y.data<T>(), x.data<T>(), rows, V);
  });
}

void cross_entropy(Tensor loss, Tensor lse, Tensor logits, Tensor target) {
  const int64_t rows = logits.rows(), V = logits.dim(-1);
  const OnDevice ids(target, logits.device());
  dispatch_float(logits.dtype(), [&]<class T>() {
    launch_rows("cross_entropy", rows, V, cross_entropy_kernel<RowWarp, T>,
                cross_entropy_kernel<RowBlock, T>, loss.data<T>(), lse.data<T>(), logits.data<T>(),
                ids.data<int32_t>(), rows, V);
  });
}

void cross_entropy_backward(Tensor dlogits, Tensor dloss, Tensor logits, Tensor lse,
                            Tensor target) {
  const int64_t rows = logits.rows(), V = logits.dim(-1);
  const OnDevice ids(target, logits.device());
  dispatch_float(logits.dtype(), [&]<class T>() {
    launch_rows("cross_entropy_backward", rows, V, cross_entropy_backward_kernel<RowWarp, T>,
                cross_entropy_backward_kernel<RowBlock, T>, dlogits.data<T>(), dloss.data<T>(),
                logits.data<T>(), lse.data<T>(), ids.data<int32_t>(), rows, V);
  });
}

}  // namespace brine::cuda
