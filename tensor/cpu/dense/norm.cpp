// LayerNorm and RMSNorm over the last axis.
#include "tensor/kernels/dense.h"

#include <cmath>

#include "tensor/base/math.h"
#include "tensor/base/parallel.h"
#include "tensor/cpu/core/lanes.h"
#include "tensor/cpu/core/pieces.h"
#include "tensor/cpu/core/stream.h"

namespace brine::BRINE_CPU {
namespace {

// The rows that a norm reads: those of x, or those of x + residual, which it writes to `sum` on its
// way, so that they are in L1 when they are normalised.
template <class T>
class Rows {
 public:
  Rows(const Tensor& sum, const Tensor& x, const Tensor& residual)
      : x_(x.data<T>()),
        residual_(residual.defined() ? residual.data<T>() : nullptr),
        sum_(residual.defined() ? sum.data<T>() : nullptr),
        C_(x.dim(-1)),
        streamed_(sum.defined() ? sum : x, C_) {}

  // Row r; the next one is fetched if it is before `end`. Valid until the next call.
  const T* at(int64_t r, int64_t end) {
    const T* row = x_ + r * C_;
    if (r + 1 < end) fetch(row + C_, C_);
    if (!residual_) return row;
    const T* other = residual_ + r * C_;
    if (r + 1 < end) fetch(other + C_, C_);
    T* to = streamed_.at(sum_ + r * C_);
#pragma omp simd
    for (int64_t c = 0; c < C_; ++c) to[c] = row[c] + other[c];
    streamed_.done(C_);
    return to;
  }

 private:
  const T *x_, *residual_;
  T* sum_;
  int64_t C_;
  Streamed<T> streamed_;
};

// One row of LayerNorm.
template <class T>
void layernorm_row(T* out, const T* row, const T* w, const T* b, int64_t C, T eps, T& mean,
                   T& rstd) {
  // The first mean centres the row; the second sum corrects its rounding error.
  const T first = sum_lanes<T>(C, [=](int64_t i) { return row[i]; }) / T(C);
  T rest, squares;
  sum_lanes<T>(
      C, [=](int64_t i) { return row[i] - first; },
      [=](int64_t i) { return (row[i] - first) * (row[i] - first); }, rest, squares);
  rest /= T(C);
  const T variance = std::max(T(0), squares / T(C) - rest * rest);
  const T s = 1 / std::sqrt(variance + eps);
  mean = first + rest;
  rstd = s;
#pragma omp simd
  for (int64_t c = 0; c < C; ++c) {
    out[c] = math::normalized(row[c] - first - rest, s, w[c], b[c]);
  }
}

// One row of RMSNorm.
template <class T>
void rmsnorm_row(T* out, const T* row, const T* w, int64_t C, T eps, T& rstd) {
  const T squares = sum_lanes<T>(C, [=](int64_t i) { return row[i] * row[i]; });
  const T s = 1 / std::sqrt(squares / T(C) + eps);
  rstd = s;
#pragma omp simd
  for (int64_t c = 0; c < C; ++c) out[c] = row[c] * s * w[c];
}

// The gradient of a row: dx = rstd (g - mean(g) - x^ mean(g x^)) with g = dy w,
// x^ = (x - mean) rstd.
template <class T>
void layernorm_gradient(T* dx, const T* dy, const T* x, const T* w, int64_t C, T mean, T rstd) {
  T sum, dot;
  sum_lanes<T>(
      C, [=](int64_t c) { return dy[c] * w[c]; },
      [=](int64_t c) { return dy[c] * w[c] * (x[c] - mean); }, sum, dot);
  const T shift = sum / T(C), slope = dot * rstd * rstd / T(C);
#pragma omp simd
  for (int64_t c = 0; c < C; ++c) dx[c] = rstd * (dy[c] * w[c] - shift - (x[c] - mean) * slope);
}

// The same of RMSNorm: dx = rstd (g - x^ mean(g x^)), x^ = x rstd.
template <class T>
void rmsnorm_gradient(T* dx, const T* dy, const T* x, const T* w, int64_t C, T rstd) {
  const T dot = sum_lanes<T>(C, [=](int64_t c) { return dy[c] * w[c] * x[c]; });
  const T slope = dot * rstd * rstd / T(C);
#pragma omp simd
  for (int64_t c = 0; c < C; ++c) dx[c] = rstd * (dy[c] * w[c] - x[c] * slope);
}

// dx += more. A separate loop: in the one before, the sum would be part of a multiply-add, with
// other bits than those of a gradient that is added later.
template <class T>
void add_row(T* dx, const T* more, int64_t C) {
#pragma omp simd
  for (int64_t c = 0; c < C; ++c) dx[c] += more[c];
}

// to [C] += the shares of all bands, in order; they are `stride` apart.
template <class T>
void add_shares(T* to, const T* shares, int64_t bands, int64_t stride, int64_t C) {
  parallel_for(C, 512, [=](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      double sum = double(to[c]);
      for (int64_t b = 0; b < bands; ++b) sum += double(shares[b * stride + c]);
      to[c] = T(sum);
    }
  });
}

}  // namespace

void norm(Tensor y, Tensor sum, Tensor mean, Tensor rstd, Tensor x, Tensor residual, Tensor w,
          Tensor b, double eps) {
  const int64_t rows = rstd.numel(), C = x.dim(-1);
  dispatch_float(y.dtype(), [&]<class T>() {
    T *py = y.data<T>(), *pmean = data_or_null<T>(mean), *prstd = rstd.data<T>();
    const T *pw = w.data<T>(), *pb = data_or_null<T>(b);
    parallel_for(rows, kGrain / C, [=, &y, &sum, &x, &residual](int64_t begin, int64_t end) {
      Streamed<T> streamed(y, C);
      Rows<T> in(sum, x, residual);
      for (int64_t r = begin; r < end; ++r) {
        const T* row = in.at(r, end);
        T* out = streamed.at(py + r * C);
        if (pmean) {
          layernorm_row(out, row, pw, pb, C, T(eps), pmean[r], prstd[r]);
        } else {
          rmsnorm_row(out, row, pw, C, T(eps), prstd[r]);
        }
        streamed.done(C);
      }
    });
  });
}

// Bands of rows, whose number depends only on the sizes, each sum their part of dw and db; the
// parts are added in order.
void norm_backward(Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor more, Tensor x, Tensor w,
                   Tensor mean, Tensor rstd) {
  const int64_t rows = rstd.numel(), C = x.dim(-1);
  const int64_t band = std::max<int64_t>({4, kGrain / C, (rows + 63) / 64});
  const int64_t bands = (rows + band - 1) / band;
  const bool parameters = dw.defined() || db.defined();
  dispatch_float(dy.dtype(), [&]<class T>() {
    T* pdx = data_or_null<T>(dx);
    const T *pdy = dy.data<T>(), *pmore = data_or_null<T>(more), *px = x.data<T>();
    const T *pw = w.data<T>(), *pmean = data_or_null<T>(mean), *prstd = rstd.data<T>();
    Tensor partial = Tensor::empty({parameters ? bands : 0, 2, C}, dy.dtype());
    T* part = partial.data<T>();
    parallel_for(bands, 1, [&](int64_t b, int64_t) {
      T* sw = part + 2 * b * C;
      T* sb = sw + C;
      if (parameters) std::fill(sw, sw + 2 * C, T(0));
      Streamed<T> streamed(dy, C);  // dx, if needed, is as large as dy
      for (int64_t r = b * band; r < std::min(rows, (b + 1) * band); ++r) {
        const T* g = pdy + r * C;
        const T* row = px + r * C;
        const T m = pmean ? pmean[r] : T(0), s = prstd[r];
        if (r + 1 < rows) fetch(g + C, C), fetch(row + C, C);
        if (pdx) {
          T* to = streamed.at(pdx + r * C);
          const T* rest = pmore ? pmore + r * C : nullptr;
          if (rest && r + 1 < rows) fetch(rest + C, C);
          if (pmean) {
            layernorm_gradient(to, g, row, pw, C, m, s);
          } else {
            rmsnorm_gradient(to, g, row, pw, C, s);
          }
          if (rest) add_row(to, rest, C);
          streamed.done(C);
        }
        if (!parameters) continue;
#pragma omp simd
        for (int64_t c = 0; c < C; ++c) {
          sw[c] += g[c] * ((row[c] - m) * s);
          sb[c] += g[c];
        }
      }
    });
    if (dw.defined()) add_shares(dw.data<T>(), part, bands, 2 * C, C);
    if (db.defined()) add_shares(db.data<T>(), part + C, bands, 2 * C, C);
  });
}

}  // namespace brine::BRINE_CPU
