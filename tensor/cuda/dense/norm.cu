// LayerNorm and RMSNorm: rows of up to 1,024 numbers by a warp each, in registers, so that memory
// is read once; longer ones by a block. Parameter gradients by bands of rows.
#include "tensor/cuda/core/band_sums.cuh"
#include "tensor/cuda/core/rows.cuh"
#include "tensor/kernels/dense.h"

namespace brine::cuda {
namespace {

// f(i, c) for the columns c of the calling thread, of which c is the i-th. kPerThread: how many it
// may have; 0: any number, and f gets i = 0.
template <class Rows, int kPerThread, class F>
__device__ inline void each_column(int64_t C, F&& f) {
  if constexpr (kPerThread == 0) {
    for (int64_t c = Rows::lane(); c < C; c += Rows::size()) f(0, c);
  } else {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int c = Rows::lane() + i * kWarp;
      if (c < C) f(i, c);
    }
  }
}

// The thread's numbers of a row: loaded once into registers, or read again from the cache.
template <class T, int kPerThread>
struct RowNumbers {
  T x[kPerThread];
  __device__ void set(int i, T value) { x[i] = value; }
  __device__ T get(int i, const T*, int64_t) const { return x[i]; }
};
template <class T>
struct RowNumbers<T, 0> {
  __device__ void set(int, T) {}
  __device__ T get(int, const T* row, int64_t c) const { return row[c]; }
};

// What a norm reads: rows of x, or of x + residual, which it writes to `sum` first. A thread reads
// only what it wrote.
template <class T>
struct NormInput {
  const T *x, *residual;  // null: no residual
  T* sum;

  __device__ const T* row(int64_t r, int64_t C) const { return (residual ? sum : x) + r * C; }
  __device__ T load(int64_t i) const {
    if (!residual) return x[i];
    return sum[i] = x[i] + residual[i];
  }
};

template <class T>
NormInput<T> norm_input(const Tensor& sum, const Tensor& x, const Tensor& residual) {
  if (!residual.defined()) return {x.data<T>(), nullptr, nullptr};
  return {x.data<T>(), residual.data<T>(), sum.data<T>()};
}

// y [R, C] = (x - mean) rstd w + b.
template <class Rows, int kPerThread, class T>
__global__ void layernorm_kernel(T* y, T* mean, T* rstd, NormInput<T> in, const T* w, const T* b,
                                 T eps, int64_t R, int64_t C) {
  const int64_t r = Rows::row();
  if (r >= R) return;
  const T* x = in.row(r, C);
  y += r * C;
  RowNumbers<T, kPerThread> numbers;
  T sum = 0;
  each_column<Rows, kPerThread>(C, [&](int i, int64_t c) {
    const T value = in.load(r * C + c);
    numbers.set(i, value);
    sum += value;
  });
  // The first mean centres the row; the second sum corrects its rounding error, which a row that is
  // nearly constant would show many times as large.
  const T first = Rows::sum(sum) / T(C);
  T centred = 0, square = 0;
  each_column<Rows, kPerThread>(C, [&](int i, int64_t c) {
    const T value = numbers.get(i, x, c) - first;
    centred += value;
    square += value * value;
  });
  const T rest = Rows::sum(centred) / T(C);
  const T variance = Rows::sum(square) / T(C) - rest * rest;
  const T s = 1 / sqrt((variance > 0 ? variance : T(0)) + eps);
  each_column<Rows, kPerThread>(C, [&](int i, int64_t c) {
    y[c] = math::normalized(numbers.get(i, x, c) - first - rest, s, w[c], b[c]);
  });
  if (Rows::lane() == 0) {
    mean[r] = first + rest;
    rstd[r] = s;
  }
}

// y [R, C] = x rstd w.
template <class Rows, int kPerThread, class T>
__global__ void rmsnorm_kernel(T* y, T* rstd, NormInput<T> in, const T* w, T eps, int64_t R,
                               int64_t C) {
  const int64_t r = Rows::row();
  if (r >= R) return;
  const T* x = in.row(r, C);
  y += r * C;
  RowNumbers<T, kPerThread> numbers;
  T square = 0;
  each_column<Rows, kPerThread>(C, [&](int i, int64_t c) {
    const T value = in.load(r * C + c);
    numbers.set(i, value);
    square += value * value;
  });
  const T s = 1 / sqrt(Rows::sum(square) / T(C) + eps);
  each_column<Rows, kPerThread>(C,
                                [&](int i, int64_t c) { y[c] = numbers.get(i, x, c) * s * w[c]; });
  if (Rows::lane() == 0) rstd[r] = s;
}

// dx = rstd (w dy - mean(w dy) - x^ mean(w dy x^)), x^ = (x - mean) rstd, both without the mean for
// RMSNorm; plus `more` if there is any.
template <class Rows, int kPerThread, bool kCentred, class T>
__global__ void dx_kernel(T* dx, const T* dy, const T* more, const T* x, const T* w, const T* mean,
                          const T* rstd, int64_t R, int64_t C) {
  const int64_t r = Rows::row();
  if (r >= R) return;
  dx += r * C;
  dy += r * C;
  x += r * C;
  const T m = kCentred ? mean[r] : T(0), s = rstd[r];
  RowNumbers<T, kPerThread> x_numbers, dy_numbers;
  T sum = 0, dot = 0;
  each_column<Rows, kPerThread>(C, [&](int i, int64_t c) {
    const T value = x[c], g = dy[c];
    x_numbers.set(i, value);
    dy_numbers.set(i, g);
    if constexpr (kCentred) sum += w[c] * g;
    dot += w[c] * g * (kCentred ? value - m : value) * s;
  });
  const T average = kCentred ? Rows::sum(sum) / T(C) : T(0), along = Rows::sum(dot) / T(C);
  each_column<Rows, kPerThread>(C, [&](int i, int64_t c) {
    const T g = dy_numbers.get(i, dy, c), value = x_numbers.get(i, x, c);
    if constexpr (kCentred) {
      dx[c] = s * (w[c] * g - average - (value - m) * s * along);
    } else {
      dx[c] = s * (w[c] * g - value * s * along);
    }
  });
  // A separate loop: in the one before, the sum would be part of a multiply-add.
  if (more) each_column<Rows, kPerThread>(C, [&](int, int64_t c) { dx[c] += more[r * C + c]; });
}

// f.operator()<Rows, kPerThread>() for rows of C columns.
template <class F>
void dispatch_row(int64_t C, F&& f) {
  if (C > kLongRow) return f.template operator()<RowBlock, 0>();
  if (C > 8 * kWarp) return f.template operator()<RowWarp, 32>();
  if (C > 2 * kWarp) return f.template operator()<RowWarp, 8>();
  f.template operator()<RowWarp, 2>();
}

// The terms of the gradients of w and b; mean is null for RMSNorm.
template <class T>
struct ParameterTerms {
  const T *dy, *x, *mean, *rstd;
  int64_t C;

  __device__ void operator()(double (&sums)[2], int64_t, int64_t r, int64_t c) const {
    const T g = dy[r * C + c], centred = mean ? x[r * C + c] - mean[r] : x[r * C + c];
    sums[0] += double(g * centred * rstd[r]);
    sums[1] += double(g);
  }
};

// Either gradient may be unneeded.
template <class T>
struct AddGradients {
  T *dw, *db;
  __device__ void operator()(int64_t, int64_t, int64_t c, const double (&sums)[2]) const {
    if (dw) dw[c] += T(sums[0]);
    if (db) db[c] += T(sums[1]);
  }
};

}  // namespace

void norm(Tensor y, Tensor sum, Tensor mean, Tensor rstd, Tensor x, Tensor residual, Tensor w,
          Tensor b, double eps) {
  const int64_t R = x.rows(), C = x.dim(-1);
  dispatch_float(x.dtype(), [&]<class T>() {
    const NormInput<T> in = norm_input<T>(sum, x, residual);
    dispatch_row(C, [&]<class Rows, int kPerThread>() {
      if (mean.defined()) {
        launch_rows<Rows>("layernorm", R, layernorm_kernel<Rows, kPerThread, T>, y.data<T>(),
                          mean.data<T>(), rstd.data<T>(), in, w.data<T>(), b.data<T>(), T(eps), R,
                          C);
      } else {
        launch_rows<Rows>("rmsnorm", R, rmsnorm_kernel<Rows, kPerThread, T>, y.data<T>(),
                          rstd.data<T>(), in, w.data<T>(), T(eps), R, C);
      }
    });
  });
}

void norm_backward(Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor more, Tensor x, Tensor w,
                   Tensor mean, Tensor rstd) {
  const int64_t R = x.rows(), C = x.dim(-1);
  const bool centred = mean.defined();
  const char* name = centred ? "layernorm_backward" : "rmsnorm_backward";
  if (R == 0) return;
  dispatch_float(x.dtype(), [&]<class T>() {
    if (dx.defined()) {
      dispatch_row(C, [&]<class Rows, int kPerThread>() {
        launch_rows<Rows>(
            name, R,
            centred ? dx_kernel<Rows, kPerThread, true, T> : dx_kernel<Rows, kPerThread, false, T>,
            dx.data<T>(), dy.data<T>(), data_or_null<T>(more), x.data<T>(), w.data<T>(),
            data_or_null<T>(mean), rstd.data<T>(), R, C);
      });
    }
    if (!dw.defined() && !db.defined()) return;
    const ParameterTerms<T> terms{dy.data<T>(), x.data<T>(), data_or_null<T>(mean), rstd.data<T>(),
                                  C};
    sum_bands<2>(name, 1, R, C, terms, AddGradients<T>{data_or_null<T>(dw), data_or_null<T>(db)},
                 x.device());
  });
}

}  // namespace brine::cuda
