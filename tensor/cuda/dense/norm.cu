// LayerNorm and RMSNorm: a block of threads for every row; parameter gradients by bands of rows, in
// order.
#include "tensor/cuda/core/common.cuh"
#include "tensor/kernels/dense.h"

namespace brine::cuda {
namespace {

constexpr int64_t kBand = 64;  // rows whose part of dw and db one block sums
constexpr int kColumns = 128;  // columns of such a block

// What a norm reads: row r of x, or of x + residual, which it writes to `sum` first. A thread reads
// only what it wrote.
template <class T>
struct NormRow {
  const T *x, *residual;  // null: no residual
  T* sum;

  __device__ const T* at(int64_t r, int64_t C) const {
    if (!residual) return x + r * C;
    for (int64_t c = threadIdx.x; c < C; c += blockDim.x) {
      sum[r * C + c] = x[r * C + c] + residual[r * C + c];
    }
    return sum + r * C;
  }
};

template <class T>
NormRow<T> norm_row(const Tensor& sum, const Tensor& x, const Tensor& residual) {
  if (!residual.defined()) return {x.data<T>(), nullptr, nullptr};
  return {x.data<T>(), residual.data<T>(), sum.data<T>()};
}

// y [R, C] = (x - mean) rstd w + b. The row is read three times; it stays in the cache.
template <class T>
__global__ void layernorm_kernel(T* y, T* mean, T* rstd, NormRow<T> in, const T* w, const T* b,
                                 T eps, int64_t C) {
  const int64_t r = blockIdx.x;
  const T* x = in.at(r, C);
  y += r * C;
  T sum = 0;
  for (int64_t c = threadIdx.x; c < C; c += blockDim.x) sum += x[c];
  const T m = block_sum(sum) / T(C);
  T square = 0;
  for (int64_t c = threadIdx.x; c < C; c += blockDim.x) square += (x[c] - m) * (x[c] - m);
  const T s = 1 / sqrt(block_sum(square) / T(C) + eps);
  for (int64_t c = threadIdx.x; c < C; c += blockDim.x) {
    y[c] = math::normalized(x[c] - m, s, w[c], b[c]);
  }
  if (threadIdx.x == 0) {
    mean[r] = m;
    rstd[r] = s;
  }
}

// dx += more, unless that is null: apart from the loop before, where it would be part of a
// multiply-add.
template <class T>
__device__ void add_row(T* dx, const T* more, int64_t C) {
  if (!more) return;
  for (int64_t c = threadIdx.x; c < C; c += blockDim.x) dx[c] += more[c];
}

// dx = rstd (w dy - mean(w dy) - x^ mean(w dy x^)), x^ = (x - mean) rstd; plus `more` if there is
// any.
template <class T>
__global__ void layernorm_dx_kernel(T* dx, const T* dy, const T* more, const T* x, const T* w,
                                    const T* mean, const T* rstd, int64_t C) {
  const int64_t r = blockIdx.x;
  if (more) more += r * C;
  dx += r * C;
  dy += r * C;
  x += r * C;
  const T m = mean[r], s = rstd[r];
  T sum = 0, dot = 0;
  for (int64_t c = threadIdx.x; c < C; c += blockDim.x) {
    const T g = w[c] * dy[c];
    sum += g;
    dot += g * (x[c] - m) * s;
  }
  const T average = block_sum(sum) / T(C), along = block_sum(dot) / T(C);
  for (int64_t c = threadIdx.x; c < C; c += blockDim.x) {
    dx[c] = s * (w[c] * dy[c] - average - (x[c] - m) * s * along);
  }
  add_row(dx, more, C);
}

// parts [bands, 2, C] = the sums of dy x^ and of dy over the rows of a band.
template <class T>
__global__ void layernorm_bands_kernel(T* parts, const T* dy, const T* x, const T* mean,
                                       const T* rstd, int64_t R, int64_t C) {
  const int64_t c = int64_t(blockIdx.y) * blockDim.x + threadIdx.x, band = blockIdx.x;
  if (c >= C) return;
  T dw = 0, db = 0;
  for (int64_t r = band * kBand; r < R && r < (band + 1) * kBand; ++r) {
    const T g = dy[r * C + c];
    dw += g * (x[r * C + c] - mean[r]) * rstd[r];
    db += g;
  }
  parts[band * 2 * C + c] = dw;
  parts[(band * 2 + 1) * C + c] = db;
}

// y [C] += sum over bands of parts, in order; either gradient may be unneeded.
template <class T>
__global__ void layernorm_parameters_kernel(T* dw, T* db, const T* parts, int64_t bands,
                                            int64_t C) {
  const int64_t c = piece();
  if (c >= C) return;
  double w = 0, b = 0;
  for (int64_t band = 0; band < bands; ++band) {
    w += double(parts[band * 2 * C + c]);
    b += double(parts[(band * 2 + 1) * C + c]);
  }
  if (dw) dw[c] += T(w);
  if (db) db[c] += T(b);
}

// y [R, C] = x rstd w.
template <class T>
__global__ void rmsnorm_kernel(T* y, T* rstd, NormRow<T> in, const T* w, T eps, int64_t C) {
  const int64_t r = blockIdx.x;
  const T* x = in.at(r, C);
  y += r * C;
  T square = 0;
  for (int64_t c = threadIdx.x; c < C; c += blockDim.x) square += x[c] * x[c];
  const T s = 1 / sqrt(block_sum(square) / T(C) + eps);
  for (int64_t c = threadIdx.x; c < C; c += blockDim.x) y[c] = x[c] * s * w[c];
  if (threadIdx.x == 0) rstd[r] = s;
}

// dx = rstd (w dy - x^ mean(w dy x^)), x^ = x rstd; plus `more` if there is any.
template <class T>
__global__ void rmsnorm_dx_kernel(T* dx, const T* dy, const T* more, const T* x, const T* w,
                                  const T* rstd, int64_t C) {
  const int64_t r = blockIdx.x;
  if (more) more += r * C;
  dx += r * C;
  dy += r * C;
  x += r * C;
  const T s = rstd[r];
  T dot = 0;
  for (int64_t c = threadIdx.x; c < C; c += blockDim.x) dot += w[c] * dy[c] * x[c] * s;
  const T along = block_sum(dot) / T(C);
  for (int64_t c = threadIdx.x; c < C; c += blockDim.x) {
    dx[c] = s * (w[c] * dy[c] - x[c] * s * along);
  }
  add_row(dx, more, C);
}

// parts [bands, C] = the sums of dy x^ over the rows of a band.
template <class T>
__global__ void rmsnorm_bands_kernel(T* parts, const T* dy, const T* x, const T* rstd, int64_t R,
                                     int64_t C) {
  const int64_t c = int64_t(blockIdx.y) * blockDim.x + threadIdx.x, band = blockIdx.x;
  if (c >= C) return;
  T dw = 0;
  for (int64_t r = band * kBand; r < R && r < (band + 1) * kBand; ++r) {
    dw += dy[r * C + c] * x[r * C + c] * rstd[r];
  }
  parts[band * C + c] = dw;
}

// dw [C] += sum over bands of parts, in order.
template <class T>
__global__ void rmsnorm_parameters_kernel(T* dw, const T* parts, int64_t bands, int64_t C) {
  const int64_t c = piece();
  if (c >= C) return;
  double sum = 0;
  for (int64_t band = 0; band < bands; ++band) sum += double(parts[band * C + c]);
  dw[c] += T(sum);
}

// Threads of a row's block: whole warps, at most one per column.
dim3 row_block(int64_t C) {
  return dim3(unsigned(std::clamp<int64_t>((C + kWarp - 1) / kWarp * kWarp, kWarp, kThreads)));
}

// Bands along x, which may have 2^31 blocks; y, of the columns, 65,535 at most. A decoder at
// 131,072 tokens of 12 heads has 98,304 bands.
dim3 band_grid(int64_t bands, int64_t C) {
  return dim3(blocks_for(bands, 1), blocks_for(C, kColumns));
}

}  // namespace

void layernorm(Tensor y, Tensor sum, Tensor mean, Tensor rstd, Tensor x, Tensor residual, Tensor w,
               Tensor b, double eps) {
  if (x.rows() == 0) return;
  dispatch_float(x.dtype(), [&]<class T>() {
    launch("layernorm", layernorm_kernel<T>, dim3(blocks_for(x.rows(), 1)), row_block(x.dim(-1)), 0,
           y.data<T>(), mean.data<T>(), rstd.data<T>(), norm_row<T>(sum, x, residual), w.data<T>(),
           b.data<T>(), T(eps), x.dim(-1));
  });
}

void layernorm_backward(Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor more, Tensor x, Tensor w,
                        Tensor mean, Tensor rstd) {
  const int64_t R = x.rows(), C = x.dim(-1), bands = (R + kBand - 1) / kBand;
  if (R == 0) return;
  dispatch_float(x.dtype(), [&]<class T>() {
    if (dx.defined()) {
      launch("layernorm_backward", layernorm_dx_kernel<T>, dim3(blocks_for(R, 1)), row_block(C), 0,
             dx.data<T>(), dy.data<T>(), more.defined() ? more.data<T>() : nullptr, x.data<T>(),
             w.data<T>(), mean.data<T>(), rstd.data<T>(), C);
    }
    if (!dw.defined() && !db.defined()) return;
    Tensor parts = Tensor::empty({bands, 2, C}, x.dtype(), x.device());
    launch("layernorm_backward", layernorm_bands_kernel<T>, band_grid(bands, C), dim3(kColumns), 0,
           parts.data<T>(), dy.data<T>(), x.data<T>(), mean.data<T>(), rstd.data<T>(), R, C);
    launch_each("layernorm_backward", C, layernorm_parameters_kernel<T>,
                dw.defined() ? dw.data<T>() : nullptr, db.defined() ? db.data<T>() : nullptr,
                parts.data<T>(), bands, C);
  });
}

void rmsnorm(Tensor y, Tensor sum, Tensor rstd, Tensor x, Tensor residual, Tensor w, double eps) {
  if (x.rows() == 0) return;
  dispatch_float(x.dtype(), [&]<class T>() {
    launch("rmsnorm", rmsnorm_kernel<T>, dim3(blocks_for(x.rows(), 1)), row_block(x.dim(-1)), 0,
           y.data<T>(), rstd.data<T>(), norm_row<T>(sum, x, residual), w.data<T>(), T(eps),
           x.dim(-1));
  });
}

void rmsnorm_backward(Tensor dx, Tensor dw, Tensor dy, Tensor more, Tensor x, Tensor w,
                      Tensor rstd) {
  const int64_t R = x.rows(), C = x.dim(-1), bands = (R + kBand - 1) / kBand;
  if (R == 0) return;
  dispatch_float(x.dtype(), [&]<class T>() {
    if (dx.defined()) {
      launch("rmsnorm_backward", rmsnorm_dx_kernel<T>, dim3(blocks_for(R, 1)), row_block(C), 0,
             dx.data<T>(), dy.data<T>(), more.defined() ? more.data<T>() : nullptr, x.data<T>(),
             w.data<T>(), rstd.data<T>(), C);
    }
    if (!dw.defined()) return;
    Tensor parts = Tensor::empty({bands, C}, x.dtype(), x.device());
    launch("rmsnorm_backward", rmsnorm_bands_kernel<T>, band_grid(bands, C), dim3(kColumns), 0,
           parts.data<T>(), dy.data<T>(), x.data<T>(), rstd.data<T>(), R, C);
    launch_each("rmsnorm_backward", C, rmsnorm_parameters_kernel<T>, dw.data<T>(), parts.data<T>(),
                bands, C);
  });
}

}  // namespace brine::cuda
