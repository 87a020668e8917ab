// Running means: of all rows up to each; sums in f64.
#include "tensor/base/parallel.h"
#include "tensor/cpu/core/pieces.h"
#include "tensor/kernels/dense.h"

namespace brine::BRINE_CPU {
namespace {

constexpr int64_t kScanColumns = 64;  // that one scan processes together

// Calls f(first element, columns) for every band of columns of every matrix of x [R, T, C].
template <class F>
void each_band(const Tensor& x, F f) {
  const int64_t C = x.dim(-1), T = x.dim(-2), R = x.numel() ? x.numel() / (T * C) : 0;
  const int64_t bands = (C + kScanColumns - 1) / kScanColumns;
  parallel_for(R * bands, std::max<int64_t>(1, kGrain / (T * kScanColumns + 1)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   const int64_t first = i % bands * kScanColumns;
                   f(i / bands * T * C + first, std::min(kScanColumns, C - first));
                 }
               });
}

}  // namespace

void running_mean(Tensor y, Tensor x) {
  dispatch_float(y.dtype(), [&]<class T>() {
    T* py = y.data<T>();
    const T* px = x.data<T>();
    const int64_t C = x.dim(-1), tokens = x.dim(-2);
    each_band(x, [=](int64_t at, int64_t columns) {
      double sum[kScanColumns] = {};
      for (int64_t t = 0; t < tokens; ++t, at += C) {
        const double share = 1.0 / double(t + 1);
#pragma omp simd
        for (int64_t c = 0; c < columns; ++c) {
          sum[c] += double(px[at + c]);
          py[at + c] = T(sum[c] * share);
        }
      }
    });
  });
}

// dx[s] = sum over t >= s of dy[t] / (t + 1)
void running_mean_backward(Tensor dx, Tensor dy) {
  dispatch_float(dx.dtype(), [&]<class T>() {
    T* pdx = dx.data<T>();
    const T* pdy = dy.data<T>();
    const int64_t C = dx.dim(-1), tokens = dx.dim(-2);
    each_band(dx, [=](int64_t first, int64_t columns) {
      double sum[kScanColumns] = {};
      for (int64_t t = tokens - 1; t >= 0; --t) {
        const int64_t at = first + t * C;
        const double share = 1.0 / double(t + 1);
#pragma omp simd
        for (int64_t c = 0; c < columns; ++c) {
          sum[c] += double(pdy[at + c]) * share;
          pdx[at + c] = T(sum[c]);
        }
      }
    });
  });
}

}  // namespace brine::BRINE_CPU
