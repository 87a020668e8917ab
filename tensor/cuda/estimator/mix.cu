// From sparse attention to the block's output: the gates of both paths, a warp for every row of a
// head.
#include "tensor/cuda/core/common.cuh"
#include "tensor/kernels/estimator.h"

namespace brine::cuda {
namespace {

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
    const int64_t index = i * d + j, average = of * d + j;
    const R up = valid ? dy[j] : R(0);
    g.dc[index] = valid ? keep * up : R(0);
    g.daverage[average] = (first ? R(0) : g.daverage[average]) + (valid ? rest * up : R(0));
    if (!valid) continue;
    along_c += up * g.c[index];
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

}  // namespace

void mix_outputs(Tensor y, Tensor c, Tensor average, Tensor gates, Visibility visible) {
  const int64_t H = c.dim(1), d = c.dim(3), rows = c.rows();
  if (c.numel() == 0) return;
  DeviceWidths widths(visible, c.dim(2), c.device());
  dispatch_float(c.dtype(), [&]<class R>() {
    launch_each("mix_outputs", rows * kWarp, mix_kernel<R>, y.data<R>(), c.data<R>(),
                average.data<R>(), gates.data<R>(), widths.get(), H, H / average.dim(1), d, rows);
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
    launch_each("mix_outputs_backward", rows * kWarp, mix_backward_kernel<R>, g, widths.get(), H,
                H / average.dim(1), d, rows);
  });
}

}  // namespace brine::cuda
