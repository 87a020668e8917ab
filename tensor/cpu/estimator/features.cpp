// Random features of the Performer (FAVOR+) and learned ones, from projected inputs.
#include <cmath>
#include <limits>

#include "tensor/base/math.h"
#include "tensor/base/parallel.h"
#include "tensor/kernels/estimator.h"
#include "tensor/mask/csr.h"

namespace brine::BRINE_CPU {
namespace {

// Calls f(row, visible) for every row [b, h, t] of phi [B, H, T, m].
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

template <class T>
T largest(const T* x, int64_t n) {
  T maximum = -std::numeric_limits<T>::infinity();
#pragma omp simd reduction(max : maximum)
  for (int64_t i = 0; i < n; ++i) maximum = x[i] > maximum ? x[i] : maximum;
  return maximum;
}

// The largest projection of every (sequence, head) over the valid rows: [B, H].
template <class T>
std::vector<T> key_maxima(const Tensor& phi, const Tensor& lengths, int64_t features) {
  const int64_t H = phi.dim(1), tokens = phi.dim(2), m = phi.dim(3);
  const RowWidths widths({.causal = false, .lengths = lengths}, tokens);
  std::vector<T> maxima(size_t(phi.dim(0) * H));
  const T* p = phi.data<T>();
  parallel_for(phi.dim(0) * H, 1, [&](int64_t n, int64_t) {
    const T* rows = p + n * tokens * m;
    T& found = maxima[size_t(n)] = -std::numeric_limits<T>::infinity();
    for (int64_t r = 0; r < widths.valid(n / H); ++r) {
      found = std::max(found, largest(rows + r * m, features));
    }
  });
  return maxima;
}

}  // namespace

void relu_features(Tensor phi, double eps, Tensor lengths, int64_t features) {
  dispatch_float(phi.dtype(), [&]<class T>() {
    const int64_t m = phi.dim(3);
    T* y = phi.data<T>();
    each_feature_row(phi, lengths, [=](int64_t r, bool visible) {
      T* row = y + r * m;
      const T floor = visible ? T(eps) : T(0);
#pragma omp simd
      for (int64_t i = 0; i < features; ++i) {
        row[i] = visible && row[i] > 0 ? row[i] + floor : floor;
      }
      std::fill(row + features, row + m, T(0));
    });
  });
}

void relu_features_backward(Tensor dx, Tensor dphi, Tensor phi, double eps, Tensor lengths) {
  dispatch_float(phi.dtype(), [&]<class T>() {
    const int64_t m = phi.dim(3);
    const T *y = phi.data<T>(), *dy = dphi.data<T>();
    T* to = dx.data<T>();
    each_feature_row(phi, lengths, [=](int64_t r, bool visible) {
      const int64_t at = r * m;
#pragma omp simd
      for (int64_t i = at; i < at + m; ++i) to[i] = visible && y[i] > T(eps) ? dy[i] : T(0);
    });
  });
}

void softmax_features(Tensor phi, Tensor x, double eps, Tensor lengths, bool keys,
                      int64_t features) {
  dispatch_float(phi.dtype(), [&]<class T>() {
    const int64_t m = phi.dim(3), d = x.dim(3), rows = phi.dim(2);
    const T norm = T(1 / std::sqrt(double(features))), half = T(0.5 / std::sqrt(double(d)));
    std::vector<T> maxima;
    if (keys) maxima = key_maxima<T>(phi, lengths, features);
    T* y = phi.data<T>();
    const T* px = x.data<T>();
    each_feature_row(phi, lengths, [&](int64_t r, bool visible) {
      T* row = y + r * m;
      const T* in = px + r * d;
      if (!visible) return std::fill(row, row + m, T(0));
      T square = 0;
#pragma omp simd reduction(+ : square)
      for (int64_t i = 0; i < d; ++i) square += in[i] * in[i];
      const T maximum = keys ? maxima[size_t(r / rows)] : largest(row, features);
      const T shift = half * square + maximum;
#pragma omp simd
      for (int64_t i = 0; i < features; ++i) row[i] = norm * (math::exp(row[i] - shift) + T(eps));
      std::fill(row + features, row + m, T(0));
    });
  });
}

void softmax_features_backward(Tensor dprojected, Tensor dx, Tensor dphi, Tensor phi, Tensor x,
                               double eps, Tensor lengths, int64_t features) {
  dispatch_float(phi.dtype(), [&]<class T>() {
    const int64_t m = phi.dim(3), d = x.dim(3);
    const T floor = T(eps / std::sqrt(double(features))), scale = T(1 / std::sqrt(double(d)));
    const T *y = phi.data<T>(), *dy = dphi.data<T>(), *px = x.data<T>();
    T *to = dprojected.data<T>(), *out = dx.data<T>();
    each_feature_row(phi, lengths, [=](int64_t r, bool visible) {
      T sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = r * m; i < r * m + features; ++i) {
        const T g = visible ? dy[i] * (y[i] - floor) : T(0);
        to[i] = g;
        sum += g;
      }
      std::fill(to + r * m + features, to + (r + 1) * m, T(0));
#pragma omp simd
      for (int64_t i = r * d; i < (r + 1) * d; ++i) out[i] = visible ? -sum * scale * px[i] : T(0);
    });
  });
}

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
