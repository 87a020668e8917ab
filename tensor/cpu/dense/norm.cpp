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

}  // namespace

void layernorm(Tensor y, Tensor sum, Tensor mean, Tensor rstd, Tensor x, Tensor residual, Tensor w,
               Tensor b, double eps) {
  const int64_t rows = mean.numel(), C = x.dim(-1);
  dispatch_float(y.dtype(), [&]<class T>() {
    T* py = y.data<T>();
    T* pmean = mean.data<T>();
    T* prstd = rstd.data<T>();
    const T* pw = w.data<T>();
    const T* pb = b.data<T>();
    parallel_for(rows, kGrain / C, [=, &y, &sum, &x, &residual](int64_t begin, int64_t end) {
      Streamed<T> streamed(y, C);
      Rows<T> in(sum, x, residual);
      for (int64_t r = begin; r < end; ++r) {
        const T* row = in.at(r, end);
        T* out = streamed.at(py + r * C);
        // The first mean centres the row; the second sum corrects its rounding error.
        const T first = sum_lanes<T>(C, [=](int64_t i) { return row[i]; }) / T(C);
        T rest, squares;
        sum_lanes<T>(
            C, [=](int64_t i) { return row[i] - first; },
            [=](int64_t i) { return (row[i] - first) * (row[i] - first); }, rest, squares);
        rest /= T(C);
        const T m = first + rest;
        const T variance = std::max(T(0), squares / T(C) - rest * rest);
        const T s = 1 / std::sqrt(variance + T(eps));
        pmean[r] = m;
        prstd[r] = s;
#pragma omp simd
        for (int64_t c = 0; c < C; ++c) {
          out[c] = math::normalized(row[c] - first - rest, s, pw[c], pb[c]);
        }
        streamed.done(C);
      }
    });
  });
}

namespace {

// dx += more, unless that is null. A separate loop: in the one before, the sum would be part of a
// multiply-add, with other bits than those of a gradient that is added later.
template <class T>
void add_row(T* dx, const T* more, int64_t C) {
  if (!more) return;
#pragma omp simd
  for (int64_t c = 0; c < C; ++c) dx[c] += more[c];
}

// One row: dx = rstd (g - mean(g) - x^ mean(g x^)) with g = dy w, x^ = (x - mean) rstd, plus `more`
// unless that is null.
template <class T>
void backward_row(T* dx, const T* dy, const T* more, const T* x, const T* w, int64_t C, T mean,
                  T rstd) {
  T sum, dot;
  sum_lanes<T>(
      C, [=](int64_t c) { return dy[c] * w[c]; },
      [=](int64_t c) { return dy[c] * w[c] * (x[c] - mean); }, sum, dot);
  const T shift = sum / T(C), slope = dot * rstd * rstd / T(C);
#pragma omp simd
  for (int64_t c = 0; c < C; ++c) dx[c] = rstd * (dy[c] * w[c] - shift - (x[c] - mean) * slope);
  add_row(dx, more, C);
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

// Rows of a band: its number depends on the sizes alone.
int64_t band_rows(int64_t rows, int64_t C) {
  return std::max<int64_t>({4, kGrain / C, (rows + 63) / 64});
}

}  // namespace

// Bands of rows, whose number depends only on the sizes, each sum their part of dw and db; the
// parts are added in order.
void layernorm_backward(Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor more, Tensor x, Tensor w,
                        Tensor mean, Tensor rstd) {
  const int64_t rows = mean.numel(), C = x.dim(-1);
  const int64_t band = band_rows(rows, C);
  const int64_t bands = (rows + band - 1) / band;
  const bool parameters = dw.defined() || db.defined();
  dispatch_float(dy.dtype(), [&]<class T>() {
    T* pdx = dx.defined() ? dx.data<T>() : nullptr;
    const T* pdy = dy.data<T>();
    const T* pmore = more.defined() ? more.data<T>() : nullptr;
    const T* px = x.data<T>();
    const T* pw = w.data<T>();
    const T* pmean = mean.data<T>();
    const T* prstd = rstd.data<T>();
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
        const T m = pmean[r], s = prstd[r];
        if (r + 1 < rows) fetch(g + C, C), fetch(row + C, C);
        if (pdx) {
          const T* rest = pmore ? pmore + r * C : nullptr;
          if (rest && r + 1 < rows) fetch(rest + C, C);
          backward_row(streamed.at(pdx + r * C), g, rest, row, pw, C, m, s);
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

void rmsnorm(Tensor y, Tensor sum, Tensor rstd, Tensor x, Tensor residual, Tensor w, double eps) {
  const int64_t rows = rstd.numel(), C = x.dim(-1);
  dispatch_float(y.dtype(), [&]<class T>() {
    T* py = y.data<T>();
    T* prstd = rstd.data<T>();
    const T* pw = w.data<T>();
    parallel_for(rows, kGrain / C, [=, &y, &sum, &x, &residual](int64_t begin, int64_t end) {
      Streamed<T> streamed(y, C);
      Rows<T> in(sum, x, residual);
      for (int64_t r = begin; r < end; ++r) {
        const T* row = in.at(r, end);
        T* out = streamed.at(py + r * C);
        const T squares = sum_lanes<T>(C, [=](int64_t i) { return row[i] * row[i]; });
        const T s = 1 / std::sqrt(squares / T(C) + T(eps));
        prstd[r] = s;
#pragma omp simd
        for (int64_t c = 0; c < C; ++c) out[c] = row[c] * s * pw[c];
        streamed.done(C);
      }
    });
  });
}

namespace {

// One row: dx = rstd (g - x^ mean(g x^)) with g = dy w, x^ = x rstd, plus `more` unless null.
template <class T>
void rms_backward_row(T* dx, const T* dy, const T* more, const T* x, const T* w, int64_t C,
                      T rstd) {
  const T dot = sum_lanes<T>(C, [=](int64_t c) { return dy[c] * w[c] * x[c]; });
  const T slope = dot * rstd * rstd / T(C);
#pragma omp simd
  for (int64_t c = 0; c < C; ++c) dx[c] = rstd * (dy[c] * w[c] - x[c] * slope);
  add_row(dx, more, C);
}

}  // namespace

void rmsnorm_backward(Tensor dx, Tensor dw, Tensor dy, Tensor more, Tensor x, Tensor w,
                      Tensor rstd) {
  const int64_t rows = rstd.numel(), C = x.dim(-1);
  const int64_t band = band_rows(rows, C), bands = (rows + band - 1) / band;
  dispatch_float(dy.dtype(), [&]<class T>() {
    T* pdx = dx.defined() ? dx.data<T>() : nullptr;
    const T* pdy = dy.data<T>();
    const T* pmore = more.defined() ? more.data<T>() : nullptr;
    const T* px = x.data<T>();
    const T* pw = w.data<T>();
    const T* prstd = rstd.data<T>();
    Tensor partial = Tensor::zeros({dw.defined() ? bands : 0, C}, dy.dtype());
    T* part = dw.defined() ? partial.data<T>() : nullptr;
    parallel_for(bands, 1, [&](int64_t b, int64_t) {
      for (int64_t r = b * band; r < std::min(rows, (b + 1) * band); ++r) {
        const T* g = pdy + r * C;
        const T* row = px + r * C;
        const T s = prstd[r];
        if (pdx) rms_backward_row(pdx + r * C, g, pmore ? pmore + r * C : nullptr, row, pw, C, s);
        if (!part) continue;
        T* share = part + b * C;
#pragma omp simd
        for (int64_t c = 0; c < C; ++c) share[c] += g[c] * (row[c] * s);
      }
    });
    if (part) add_shares(dw.data<T>(), part, bands, C, C);
  });
}

}  // namespace brine::BRINE_CPU
