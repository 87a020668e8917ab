// Sums, in pieces that depend only on the sizes, accumulated in f64.
#include "tensor/base/parallel.h"
#include "tensor/cpu/core/pieces.h"
#include "tensor/kernels/dense.h"

namespace brine::BRINE_CPU {
namespace {

// The sum over pieces p of f(begin, end), added in order.
template <class F>
double sum_pieces(int64_t n, F f) {
  const int64_t pieces = (n + kGrain - 1) / kGrain;
  if (pieces <= 1) return n > 0 ? f(int64_t(0), n) : 0.0;
  Tensor partial = Tensor::empty({pieces}, Dtype::f64);
  double* part = partial.data<double>();
  parallel_for(pieces, 1,
               [&](int64_t p, int64_t) { part[p] = f(p * kGrain, std::min(n, (p + 1) * kGrain)); });
  double sum = 0;
  for (int64_t p = 0; p < pieces; ++p) sum += part[p];
  return sum;
}

template <class T>
double dot(const T* a, const T* b, int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += double(a[i]) * double(b[i]);
  return sum;
}

template <class T>
double sum(const T* x, int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += double(x[i]);
  return sum;
}

// An exponent of all ones: NaN or infinity.
template <class T>
bool is_nonfinite(T x) {
  if constexpr (sizeof(T) == 2) {
    const uint16_t mask = std::is_same_v<T, bf16> ? 0x7f80 : 0x7c00;
    return (x.bits & mask) == mask;
  } else {
    return !(std::abs(x) <= std::numeric_limits<T>::max());
  }
}

template <class T>
void count_nonfinite_typed(const Tensor& y, const Tensor& x) {
  const T* px = x.data<T>();
  y.data<int64_t>()[0] = int64_t(sum_pieces(x.numel(), [=](int64_t begin, int64_t end) {
    int64_t bad = 0;
    for (int64_t i = begin; i < end; ++i) bad += is_nonfinite(px[i]);
    return double(bad);
  }));
}

}  // namespace

void sum_all(Tensor y, Tensor x) {
  dispatch_float(x.dtype(), [&]<class T>() {
    const T* px = x.data<T>();
    y.data<T>()[0] = T(sum_pieces(
        x.numel(), [=](int64_t begin, int64_t end) { return sum(px + begin, end - begin); }));
  });
}

void square_sum(Tensor y, Tensor x) {
  dispatch_float(x.dtype(), [&]<class T>() {
    const T* px = x.data<T>();
    y.data<double>()[0] = sum_pieces(x.numel(), [=](int64_t begin, int64_t end) {
      return dot(px + begin, px + begin, end - begin);
    });
  });
}

void count_nonfinite(Tensor y, Tensor x) {
  dispatch_any(x.dtype(), [&]<class T>() {
    if constexpr (std::is_integral_v<T>) {
      y.data<int64_t>()[0] = 0;
    } else {
      count_nonfinite_typed<T>(y, x);
    }
  });
}

// Bands of rows are summed column by column, then the bands in order.
void sum_rows(Tensor y, Tensor x) {
  const int64_t C = y.numel(), rows = C ? x.numel() / C : 0;
  if (rows == 0) return;
  const int64_t band = std::max<int64_t>({8, kGrain / C, (rows + 63) / 64});
  const int64_t bands = (rows + band - 1) / band;
  Tensor partial = Tensor::empty({bands, C}, Dtype::f64);
  double* part = partial.data<double>();
  dispatch_float(x.dtype(), [&]<class T>() {
    const T* px = x.data<T>();
    T* py = y.data<T>();
    parallel_for(bands, 1, [&](int64_t b, int64_t) {
      double* sum = part + b * C;
      std::fill(sum, sum + C, 0.0);
      const int64_t end = std::min(rows, (b + 1) * band);
      int64_t r = b * band;
      for (; r + 4 <= end; r += 4) {
        const T* p = px + r * C;
#pragma omp simd
        for (int64_t c = 0; c < C; ++c) {
          sum[c] +=
              (double(p[c]) + double(p[C + c])) + (double(p[2 * C + c]) + double(p[3 * C + c]));
        }
      }
      for (; r < end; ++r) {
#pragma omp simd
        for (int64_t c = 0; c < C; ++c) sum[c] += double(px[r * C + c]);
      }
    });
    parallel_for(C, 256, [&](int64_t begin, int64_t end) {
      for (int64_t b = 1; b < bands; ++b) {
#pragma omp simd
        for (int64_t c = begin; c < end; ++c) part[c] += part[b * C + c];
      }
      for (int64_t c = begin; c < end; ++c) py[c] = T(double(py[c]) + part[c]);
    });
  });
}

}  // namespace brine::BRINE_CPU
