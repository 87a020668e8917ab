// From sparse attention to the block's output: gates, and the bidirectional average of the values.
#include <algorithm>
#include <vector>

#include "tensor/cpu/core/pieces.h"
#include "tensor/csr.h"
#include "tensor/kernels/estimator.h"
#include "tensor/math.h"

namespace brine::BRINE_CPU {
namespace {

constexpr int64_t kTokens = 64;  // per piece of work

}  // namespace

void mix_outputs(Tensor y, Tensor c, Tensor average, Tensor gates, Visibility visible) {
  int64_t B = c.dim(0), H = c.dim(1), T = c.dim(2), d = c.dim(3);
  RowWidths widths(visible, T);
  dispatch_float(c.dtype(), [&]<class R>() {
    const R *xc = c.data<R>(), *xa = average.data<R>(), *xs = gates.data<R>();
    R* out = y.data<R>();
    parallel_for(B * T, kTokens, [&](int64_t r0, int64_t r1) {
      for (int64_t r = r0; r < r1; ++r) {
        int64_t b = r / T, t = r % T;
        if (t >= widths.length(b)) {
          std::fill_n(out + r * H * d, H * d, R(0));
          continue;
        }
        for (int64_t h = 0; h < H; ++h) {
          int64_t i = (b * H + h) * T + t;
          R prob = math::sigmoid(xs[2 * i]), mix = math::sigmoid(xs[2 * i + 1]);
          R keep = mix * prob, rest = 1 - mix;
          R* row = out + (r * H + h) * d;
          const R *a = xc + i * d, *m = xa + i * d;
#pragma omp simd
          for (int64_t j = 0; j < d; ++j) row[j] = keep * a[j] + rest * m[j];
        }
      }
    });
  });
}

void mix_outputs_backward(Tensor dc, Tensor daverage, Tensor dgates, Tensor dy, Tensor c,
                          Tensor average, Tensor gates, Visibility visible) {
  int64_t B = c.dim(0), H = c.dim(1), T = c.dim(2), d = c.dim(3);
  RowWidths widths(visible, T);
  dispatch_float(c.dtype(), [&]<class R>() {
    const R *xc = c.data<R>(), *xa = average.data<R>(), *xs = gates.data<R>(), *g = dy.data<R>();
    R *gc = dc.data<R>(), *ga = daverage.data<R>(), *gs = dgates.data<R>();
    parallel_for(B * H * T, kTokens, [&](int64_t i0, int64_t i1) {
      for (int64_t i = i0; i < i1; ++i) {
        int64_t b = i / (H * T), h = i / T % H, t = i % T;
        R *out_c = gc + i * d, *out_a = ga + i * d;
        if (t >= widths.length(b)) {
          std::fill_n(out_c, d, R(0));
          std::fill_n(out_a, d, R(0));
          gs[2 * i] = gs[2 * i + 1] = 0;
          continue;
        }
        const R *up = g + ((b * T + t) * H + h) * d, *a = xc + i * d, *m = xa + i * d;
        R prob = math::sigmoid(xs[2 * i]), mix = math::sigmoid(xs[2 * i + 1]);
        R keep = mix * prob, rest = 1 - mix, along_c = 0, along_a = 0;
#pragma omp simd reduction(+ : along_c, along_a)
        for (int64_t j = 0; j < d; ++j) {
          out_c[j] = keep * up[j];
          out_a[j] = rest * up[j];
          along_c += up[j] * a[j];
          along_a += up[j] * m[j];
        }
        gs[2 * i] = mix * along_c * prob * (1 - prob);
        gs[2 * i + 1] = (prob * along_c - along_a) * mix * (1 - mix);
      }
    });
  });
}

namespace {

// Column sums of one head: share[c] = sum over rows of the estimate, and norm = sum n_c share[c].
template <class R>
double column_shares(std::vector<double>& share, const R* estimate, int64_t L, int64_t K) {
  share.assign(size_t(K), 0);
  for (int64_t t = 0; t < L; ++t) {
    for (int64_t c = 0; c < K; ++c) share[size_t(c)] += double(estimate[t * K + c]);
  }
  double norm = 0;
  for (int64_t c = 0; c < K; ++c) {
    int64_t n = math::column_begin(c + 1, L, K) - math::column_begin(c, L, K);
    norm += double(n) * share[size_t(c)];
  }
  return norm;
}

}  // namespace

void estimate_average(Tensor y, Tensor estimate, Tensor v, Visibility visible) {
  int64_t H = v.dim(1), T = v.dim(2), d = v.dim(3), K = estimate.dim(3);
  RowWidths widths(visible, T);
  dispatch_float(v.dtype(), [&]<class R>() {
    for_pieces(v.dim(0) * H, v.numel(), [&](int64_t i) {
      int64_t L = widths.valid(i / H);
      R* out = y.data<R>() + i * T * d;
      const R* x = v.data<R>() + i * T * d;
      std::vector<double> share, mean(static_cast<size_t>(d), 0);
      double norm = column_shares(share, estimate.data<R>() + i * T * K, L, K);
      for (int64_t c = 0; c < K; ++c) {
        int64_t begin = math::column_begin(c, L, K), end = math::column_begin(c + 1, L, K);
        for (int64_t j = begin; j < end; ++j) {
          double weight = share[size_t(c)] / norm;
          for (int64_t a = 0; a < d; ++a) mean[size_t(a)] += weight * double(x[j * d + a]);
        }
      }
      for (int64_t t = 0; t < T; ++t) {
        for (int64_t a = 0; a < d; ++a) out[t * d + a] = t < L ? R(mean[size_t(a)]) : R(0);
      }
    });
  });
}

void estimate_average_backward(Tensor destimate, Tensor dv, Tensor dy, Tensor estimate, Tensor v,
                               Tensor y, Visibility visible) {
  int64_t H = v.dim(1), T = v.dim(2), d = v.dim(3), K = estimate.dim(3);
  RowWidths widths(visible, T);
  dispatch_float(v.dtype(), [&]<class R>() {
    for_pieces(v.dim(0) * H, v.numel(), [&](int64_t i) {
      int64_t L = widths.valid(i / H);
      const R *g = dy.data<R>() + i * T * d, *x = v.data<R>() + i * T * d;
      const R* mean = y.data<R>() + i * T * d;
      std::vector<double> share, up(static_cast<size_t>(d), 0), column(static_cast<size_t>(K), 0);
      double norm = column_shares(share, estimate.data<R>() + i * T * K, L, K);
      for (int64_t t = 0; t < L; ++t) {
        for (int64_t a = 0; a < d; ++a) up[size_t(a)] += double(g[t * d + a]);
      }
      if (dv.defined()) std::fill_n(dv.data<R>() + i * T * d, T * d, R(0));
      // y = sum_c share_c (values of c) / norm, so d y / d share_c = (values of c - n_c y) / norm.
      for (int64_t c = 0; c < K; ++c) {
        int64_t begin = math::column_begin(c, L, K), end = math::column_begin(c + 1, L, K);
        for (int64_t j = begin; j < end; ++j) {
          for (int64_t a = 0; a < d; ++a) {
            column[size_t(c)] += up[size_t(a)] * double(x[j * d + a] - mean[a]) / norm;
            if (dv.defined()) {
              dv.data<R>()[(i * T + j) * d + a] = R(up[size_t(a)] * share[size_t(c)] / norm);
            }
          }
        }
      }
      if (!destimate.defined()) return;
      R* out = destimate.data<R>() + i * T * K;
      for (int64_t t = 0; t < T; ++t) {
        for (int64_t c = 0; c < K; ++c) out[t * K + c] = t < L ? R(column[size_t(c)]) : R(0);
      }
    });
  });
}

}  // namespace brine::BRINE_CPU
