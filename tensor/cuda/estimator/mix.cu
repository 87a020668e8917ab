// From sparse attention to the block's output: gates, and the bidirectional average of the values.
// The gates use a warp for every row of a head. Sums over rows are in f64, by bands of rows.
#include "tensor/cuda/core/band_sums.cuh"
#include "tensor/cuda/core/columns.cuh"
#include "tensor/kernels/dense.h"
#include "tensor/kernels/estimator.h"

namespace brine::cuda {
namespace {

constexpr int kWarps = kThreads / kWarp;

// Row i of [B, H, T].
struct Row {
  int64_t b, h, t;
};
__device__ Row row_of(int64_t i, int64_t H, int64_t T) {
  const int64_t bh = quotient(i, T), b = quotient(bh, H);
  return {b, bh - b * H, i - bh * T};
}

template <class R>
__global__ void mix_kernel(R* y, const R* c, const R* average, const R* gates, RowWidths widths,
                           int64_t H, int64_t group, int64_t d, int64_t rows) {
  const int64_t i = piece() / kWarp, T = widths.rows;
  if (i >= rows) return;
  const Row at = row_of(i, H, T);
  average += (quotient(i, T * group) * T + at.t) * d;
  const bool valid = at.t < widths.length(at.b);
  const R prob = math::sigmoid(gates[2 * i]), mix = math::sigmoid(gates[2 * i + 1]);
  const R keep = mix * prob, rest = 1 - mix;
  y += ((at.b * T + at.t) * H + at.h) * d;
  for (int64_t j = threadIdx.x % kWarp; j < d; j += kWarp) {
    y[j] = valid ? keep * c[i * d + j] + rest * average[j] : R(0);
  }
}

template <class R>
struct MixGradients {
  R *dc, *daverage, *dgates;
  const R *dy, *c, *average, *gates;
};

// Row i of c, whose average is row `of`; `first`: of the heads that share it.
template <class R>
__device__ void mix_row(const MixGradients<R>& g, const RowWidths& widths, int64_t i, int64_t of,
                        bool first, int64_t H, int64_t d) {
  const Row at = row_of(i, H, widths.rows);
  const int64_t T = widths.rows;
  const bool valid = at.t < widths.length(at.b);
  const R prob = math::sigmoid(g.gates[2 * i]), mix = math::sigmoid(g.gates[2 * i + 1]);
  const R keep = mix * prob, rest = 1 - mix;
  const R* dy = g.dy + ((at.b * T + at.t) * H + at.h) * d;
  R along_c = 0, along_average = 0;
  for (int64_t j = threadIdx.x % kWarp; j < d; j += kWarp) {
    const int64_t place = i * d + j, average = of * d + j;
    const R up = valid ? dy[j] : R(0);
    g.dc[place] = valid ? keep * up : R(0);
    g.daverage[average] = (first ? R(0) : g.daverage[average]) + (valid ? rest * up : R(0));
    if (!valid) continue;
    along_c += up * g.c[place];
    along_average += up * g.average[average];
  }
  along_c = warp_sum(along_c);
  along_average = warp_sum(along_average);
  if (threadIdx.x % kWarp != 0) return;
  g.dgates[2 * i] = valid ? mix * along_c * prob * (1 - prob) : R(0);
  g.dgates[2 * i + 1] = valid ? (prob * along_c - along_average) * mix * (1 - mix) : R(0);
}

// A warp for every row of daverage and the rows of the `group` heads that share it, in order.
template <class R>
__global__ void mix_backward_kernel(MixGradients<R> g, RowWidths widths, int64_t H, int64_t group,
                                    int64_t d, int64_t rows) {
  const int64_t of = piece() / kWarp, T = widths.rows;
  if (of >= rows) return;
  const int64_t head = quotient(of, T);
  for (int64_t h = 0; h < group; ++h) {
    mix_row(g, widths, (head * group + h) * T + of - head * T, of, h == 0, H, d);
  }
}

// The weight of a key of column c of a head: weight[c] = sum over rows of the estimate, divided by
// norm = sum n_c of these.
struct Shares {
  const double *weights, *norm;  // [B H, K], [B H]
  int64_t K;

  __device__ double weight(int64_t bh, int64_t j, int64_t L) const {
    return weights[bh * K + column_of(j, L, K)];
  }
};

// Rows of x [B H / group, T, N] of head bh, valid ones; with shares, row j times the weight of
// key j.
template <class R>
struct ValidTerms {
  const R* x;
  Shares shares;
  RowWidths widths;
  int64_t H, group, N;

  __device__ void operator()(double (&sum)[1], int64_t bh, int64_t t, int64_t n) const {
    const int64_t L = widths.valid(bh / H);
    if (t >= L) return;
    const double value = double(x[(bh / group * widths.rows + t) * N + n]);
    sum[0] += shares.weights ? shares.weight(bh, t, L) * value : value;
  }
};
// sums [B H, N].
struct StoreSums {
  double* sums;
  int64_t N;
  __device__ void operator()(int64_t bh, int64_t, int64_t n, const double (&sum)[1]) const {
    sums[bh * N + n] = sum[0];
  }
};

// norm [B H] = sum over columns of their keys times their share, which it divides; a block for
// each.
__global__ void norm_kernel(double* norm, double* share, RowWidths widths, int64_t H, int64_t K) {
  const int64_t bh = blockIdx.x, L = widths.valid(bh / H);
  double sum = 0;
  for (int64_t c = threadIdx.x; c < K; c += blockDim.x) {
    const int64_t n = column_begin(c + 1, L, K) - column_begin(c, L, K);
    sum += double(n) * share[bh * K + c];
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) norm[bh] = sum;
  for (int64_t c = threadIdx.x; c < K && L > 0; c += blockDim.x) share[bh * K + c] /= sum;
}

// y [B H, T, N] = x [B H, N] in every valid row, 0 at padding.
template <class R>
__global__ void spread_kernel(R* y, const double* x, RowWidths widths, int64_t H, int64_t N,
                              int64_t size) {
  const int64_t i = piece();
  if (i >= size) return;
  const int64_t row = i / N, bh = row / widths.rows, t = row % widths.rows;
  y[i] = t < widths.valid(bh / H) ? R(x[bh * N + i % N]) : R(0);
}

// Key j of every group, a warp each: along [B H, T] = up . (v_j - y) / norm for its heads, dv_j =
// sum of up weight over them.
template <class R>
struct KeyGradients {
  double* along;
  R* dv;  // may be null
  const R *v, *y;
  const double* up;  // [B H, d]
};

template <class R>
__global__ void average_keys_kernel(KeyGradients<R> g, Shares shares, RowWidths widths, int64_t H,
                                    int64_t group, int64_t d, int64_t rows) {
  const int64_t i = piece() / kWarp, T = widths.rows;
  if (i >= rows) return;
  const int64_t bg = i / T, j = i % T, L = widths.valid(bg * group / H);
  const int lane = int(threadIdx.x) % kWarp;
  if (j >= L) {
    for (int64_t a = lane; g.dv && a < d; a += kWarp) g.dv[i * d + a] = R(0);
    return;
  }
  for (int64_t bh = bg * group; bh < (bg + 1) * group; ++bh) {
    const double weight = shares.weight(bh, j, L), norm = shares.norm[bh];
    double sum = 0;
    for (int64_t a = lane; a < d; a += kWarp) {
      const double up = g.up[bh * d + a];
      sum += up * double(g.v[i * d + a] - g.y[bh * T * d + a]);
      if (g.dv) g.dv[i * d + a] = (bh == bg * group ? R(0) : g.dv[i * d + a]) + R(up * weight);
    }
    sum = warp_sum(sum);
    if (lane == 0) g.along[bh * T + j] = sum / norm;
  }
}

// column [B H, K] = the sum of along over the keys of a column, a warp for each.
__global__ void average_columns_kernel(double* column, const double* along, RowWidths widths,
                                       int64_t H, int64_t K, int64_t size) {
  const int64_t i = piece() / kWarp;
  if (i >= size) return;
  const int64_t bh = quotient(i, K), c = i - bh * K, L = widths.valid(bh / H);
  const int64_t end = column_begin(c + 1, L, K);
  double sum = 0;
  for (int64_t j = column_begin(c, L, K) + threadIdx.x % kWarp; j < end; j += kWarp) {
    sum += along[bh * widths.rows + j];
  }
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) column[i] = sum;
}

// The scratch memory of the average, and its launches.
struct Average {
  Average(const char* name, const Tensor& v, const Tensor& estimate, const Visibility& visible)
      : name(name),
        H(estimate.dim(1)),
        group(H / v.dim(1)),
        T(v.dim(2)),
        d(v.dim(3)),
        K(estimate.dim(3)),
        heads(v.dim(0) * H),
        widths(visible, T, v.device()),
        share(scratch(heads * K, v.device())),
        norm(scratch(heads, v.device())) {}

  static Tensor scratch(int64_t n, Device device) { return Tensor::empty({n}, Dtype::f64, device); }
  Shares shares() const { return {share.data<double>(), norm.data<double>(), K}; }

  // sums [B H, N] of x [B H, T, N], or of groups [B G, T, N], over valid rows, weighted by the
  // shares if there are some.
  template <class R>
  void sum_rows(const Tensor& sums, const Tensor& x, int64_t N, Shares weights) const {
    sum_bands<1>(name, heads, T, N,
                 ValidTerms<R>{x.data<R>(), weights, widths.get(), H, H / x.dim(1), N},
                 StoreSums{sums.data<double>(), N}, x.device());
  }
  template <class R>
  void find_shares(const Tensor& estimate) const {
    sum_rows<R>(share, estimate, K, Shares{nullptr, nullptr, 0});
    launch(name, norm_kernel, dim3(blocks_for(heads, 1)), dim3(kThreads), 0, norm.data<double>(),
           share.data<double>(), widths.get(), H, K);
  }
  template <class R>
  void spread(const Tensor& y, const Tensor& x, int64_t N) const {
    launch_each(name, y.numel(), spread_kernel<R>, y.data<R>(), x.data<double>(), widths.get(), H,
                N, y.numel());
  }

  const char* name;
  int64_t H, group, T, d, K, heads;  // group = heads that share values
  DeviceWidths widths;
  Tensor share, norm;
};

}  // namespace

void mix_outputs(Tensor y, Tensor c, Tensor average, Tensor gates, Visibility visible) {
  const int64_t H = c.dim(1), d = c.dim(3), rows = c.rows();
  if (c.numel() == 0) return;
  DeviceWidths widths(visible, c.dim(2), c.device());
  dispatch_float(c.dtype(), [&]<class R>() {
    launch("mix_outputs", mix_kernel<R>, dim3(blocks_for(rows, kWarps)), dim3(kThreads), 0,
           y.data<R>(), c.data<R>(), average.data<R>(), gates.data<R>(), widths.get(), H,
           H / average.dim(1), d, rows);
  });
}

void mix_outputs_backward(Tensor dc, Tensor daverage, Tensor dgates, Tensor dy, Tensor c,
                          Tensor average, Tensor gates, Visibility visible) {
  const int64_t H = c.dim(1), d = c.dim(3), rows = c.dim(0) * average.dim(1) * c.dim(2);
  if (rows == 0) return;
  DeviceWidths widths(visible, c.dim(2), c.device());
  dispatch_float(c.dtype(), [&]<class R>() {
    const MixGradients<R> g{dc.data<R>(), daverage.data<R>(), dgates.data<R>(), dy.data<R>(),
                            c.data<R>(),  average.data<R>(),  gates.data<R>()};
    launch("mix_outputs_backward", mix_backward_kernel<R>, dim3(blocks_for(rows, kWarps)),
           dim3(kThreads), 0, g, widths.get(), H, H / average.dim(1), d, rows);
  });
}

void estimate_average(Tensor y, Tensor estimate, Tensor v, Visibility visible) {
  if (v.numel() == 0) return;
  Average a("estimate_average", v, estimate, visible);
  Tensor mean = Average::scratch(a.heads * a.d, v.device());
  dispatch_float(v.dtype(), [&]<class R>() {
    a.find_shares<R>(estimate);
    a.sum_rows<R>(mean, v, a.d, a.shares());
    a.spread<R>(y, mean, a.d);
  });
}

void estimate_average_backward(Tensor destimate, Tensor dv, Tensor dy, Tensor estimate, Tensor v,
                               Tensor y, Visibility visible) {
  if (estimate.numel() == 0) return;
  Average a("estimate_average_backward", v, estimate, visible);
  Tensor up = Average::scratch(a.heads * a.d, v.device());
  Tensor along = Average::scratch(a.heads * a.T, v.device());
  dispatch_float(v.dtype(), [&]<class R>() {
    a.find_shares<R>(estimate);
    a.sum_rows<R>(up, dy, a.d, Shares{nullptr, nullptr, 0});
    const KeyGradients<R> g{along.data<double>(), dv.defined() ? dv.data<R>() : nullptr,
                            v.data<R>(), y.data<R>(), up.data<double>()};
    const int64_t rows = a.heads / a.group * a.T;
    launch(a.name, average_keys_kernel<R>, dim3(blocks_for(rows, kWarps)), dim3(kThreads), 0, g,
           a.shares(), a.widths.get(), a.H, a.group, a.d, rows);
    if (!destimate.defined()) return;
    Tensor column = Average::scratch(a.heads * a.K, v.device());
    launch_each(a.name, a.heads * a.K * kWarp, average_columns_kernel, column.data<double>(),
                along.data<double>(), a.widths.get(), a.H, a.K, a.heads * a.K);
    a.spread<R>(destimate, column, a.K);
  });
}

}  // namespace brine::cuda
