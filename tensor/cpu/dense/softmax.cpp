// Softmax over the visible keys of each row, or over the entries of a mask.
#include "tensor/kernels/dense.h"

#include <cmath>

#include "tensor/base/math.h"
#include "tensor/base/parallel.h"
#include "tensor/cpu/core/lanes.h"
#include "tensor/cpu/core/pieces.h"
#include "tensor/cpu/core/stream.h"

namespace brine::BRINE_CPU {
namespace {

template <class T>
void softmax_row(T* y, const T* x, int64_t visible, int64_t keys, T scale) {
  std::fill(y + visible, y + keys, T(0));
  if (visible == 0) return;
  const T top = max_lanes<T>(visible, [=](int64_t i) { return scale * x[i]; });
  const T sum = sum_lanes<T>(visible, [=](int64_t i) {
    const T e = math::exp_nonpositive(scale * x[i] - top);
    y[i] = e;
    return e;
  });
  const T share = 1 / sum;
#pragma omp simd
  for (int64_t i = 0; i < visible; ++i) y[i] *= share;
}

}  // namespace

void softmax(Tensor y, Tensor x, double scale, Visibility visible) {
  const int64_t S = x.dim(-1), tokens = x.dim(-2), H = x.dim(-3);
  const int64_t* length = visible.lengths.defined() ? visible.lengths.data<int64_t>() : nullptr;
  dispatch_float(y.dtype(), [&]<class T>() {
    T* py = y.data<T>();
    const T* px = x.data<T>();
    parallel_for(x.rows(), std::max<int64_t>(1, kGrain / S), [=, &y](int64_t begin, int64_t end) {
      Streamed<T> streamed(y, S);
      for (int64_t r = begin; r < end; ++r) {
        const int64_t t = r % tokens, L = length ? length[r / (tokens * H)] : tokens;
        const int64_t width = t >= L ? 0 : visible.causal ? t + 1 : length ? L : S;
        if (r + 1 < end) fetch(px + (r + 1) * S, std::min(width + 1, S));
        softmax_row(streamed.at(py + r * S), px + r * S, std::min(width, S), S, T(scale));
        streamed.done(S);
      }
    });
  });
}

void masked_softmax(Tensor y, Tensor x, Tensor mask, double scale) {
  int64_t S = x.dim(-1), R = x.rows();
  const auto* keep = mask.data<uint8_t>();
  dispatch_float(x.dtype(), [&]<class T>() {
    const T* in = x.data<T>();
    T* out = y.data<T>();
    T factor = T(scale);
    parallel_for(R, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, S)),
                 [&](int64_t r0, int64_t r1) {
                   for (int64_t r = r0; r < r1; ++r) {
                     const T* a = in + r * S;
                     const uint8_t* m = keep + r * S;
                     T* p = out + r * S;
                     T maximum = -INFINITY, sum = 0;
#pragma omp simd reduction(max : maximum)
                     for (int64_t j = 0; j < S; ++j)
                       maximum = m[j] && a[j] * factor > maximum ? a[j] * factor : maximum;
                     // A row without an entry keeps -inf: all of its values become 0.
                     T origin = maximum == T(-INFINITY) ? T(0) : maximum;
#pragma omp simd reduction(+ : sum)
                     for (int64_t j = 0; j < S; ++j) {
                       p[j] = m[j] ? math::exp(a[j] * factor - origin) : T(0);
                       sum += p[j];
                     }
                     T inverse = sum != 0 ? 1 / sum : T(0);
#pragma omp simd
                     for (int64_t j = 0; j < S; ++j) p[j] *= inverse;
                   }
                 });
  });
}

// dx = scale y (dy - sum(dy y))
void softmax_backward(Tensor dx, Tensor dy, Tensor y, double scale) {
  const int64_t S = y.dim(-1);
  dispatch_float(y.dtype(), [&]<class T>() {
    T* pdx = dx.data<T>();
    const T* pdy = dy.data<T>();
    const T* py = y.data<T>();
    const T factor = T(scale);
    parallel_for(y.rows(), std::max<int64_t>(1, kGrain / S), [=, &dx](int64_t begin, int64_t end) {
      Streamed<T> streamed(dx, S);
      for (int64_t r = begin; r < end; ++r) {
        const T* g = pdy + r * S;
        const T* p = py + r * S;
        T* out = streamed.at(pdx + r * S);
        const T dot = sum_lanes<T>(S, [=](int64_t i) { return g[i] * p[i]; });
#pragma omp simd
        for (int64_t i = 0; i < S; ++i) out[i] = factor * p[i] * (g[i] - dot);
        streamed.done(S);
      }
    });
  });
}

}  // namespace brine::BRINE_CPU
