// Learned features, from products with the inputs.
#include "tensor/base/math.h"
#include "tensor/base/parallel.h"
#include "tensor/kernels/estimator.h"
#include "tensor/mask/csr.h"

namespace brine::BRINE_CPU {
namespace {

// Calls f(row, visible) for every row [b, h, t] of phi [B, G, T, m].
template <class F>
void each_feature_row(const Tensor& phi, const Tensor& lengths, F f) {
  const int64_t H = phi.dim(1), tokens = phi.dim(2), rows = phi.dim(0) * H * tokens;
  const RowWidths widths({.causal = false, .lengths = lengths}, tokens);
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, phi.dim(3)));
  parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      f(r, r % tokens < widths.length(r / (H * tokens)));
    }
  });
}

}  // namespace

void exp_features(Tensor phi, Tensor bias, Tensor lengths) {
  dispatch_float(phi.dtype(), [&]<class T>() {
    const int64_t G = phi.dim(1), rows = phi.dim(2), m = phi.dim(3);
    const T low = T(kLowLogFeature), high = T(kHighLogFeature);
    T* y = phi.data<T>();
    const T* b = bias.data<T>();
    each_feature_row(phi, lengths, [=](int64_t r, bool visible) {
      T* row = y + r * m;
      const T* add = b + r / rows % G * m;
      if (!visible) return std::fill(row, row + m, T(0));
#pragma omp simd
      for (int64_t i = 0; i < m; ++i) {
        const T x = row[i] + add[i], above = x < low ? low : x;
        row[i] = math::exp(above > high ? high : above);
      }
    });
  });
}

void exp_features_backward(Tensor dx, Tensor dphi, Tensor phi) {
  dispatch_float(phi.dtype(), [&]<class T>() {
    const T low = math::exp(T(kLowLogFeature)), high = math::exp(T(kHighLogFeature));
    const T *y = phi.data<T>(), *dy = dphi.data<T>();
    T* to = dx.data<T>();
    parallel_for(phi.numel(), 16384, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) {
        to[i] = y[i] > low && y[i] < high ? dy[i] * y[i] : T(0);
      }
    });
  });
}

}  // namespace brine::BRINE_CPU
