// Code shared by the passes of a convolution: its sizes, and the gradient of its sums.
#pragma once

#include <algorithm>

#include "tensor/kernels/conv.h"

namespace brine::BRINE_CPU {

struct ConvSizes {
  int64_t B, rows_in, W, C, O, kT, kW, rows, reach, margin, before, rows_out;

  ConvSizes(const Tensor& x, const Tensor& w, const Convolution& conf)
      : B(x.dim(0)),
        rows_in(x.dim(1)),
        W(x.dim(2)),
        C(x.dim(3)),
        O(w.dim(0)),
        kT(w.dim(2)),
        kW(w.dim(3)),
        rows(convolved_rows(rows_in, kT, conf)),
        reach((kT - 1) * conf.dilation),       // offset of the last tap in rows
        margin((kW - 1) / 2 * conf.dilation),  // offset of the last tap in columns
        before(conf.halo_before),
        rows_out(conf.halo_before + rows + conf.halo_after) {}

  // Start of row r of the result of sequence b, in a buffer like y.
  int64_t result_row(int64_t b, int64_t r) const { return ((b * rows_out) + before + r) * W * O; }
};

// Rows of sequence b that contain tokens.
inline int64_t live_rows(const Convolution& conf, int64_t b, int64_t rows) {
  if (!conf.lengths.defined()) return rows;
  int64_t length = std::max<int64_t>(conf.lengths.data<int64_t>()[b], 0);
  return std::min(rows, (length + conf.row_stride - 1) / conf.row_stride);
}

// dy of one row before ReLU: row [W, O] = dy, where y > 0 when conf.relu.
template <class T, class Y>
void sum_gradient_row(T* row, const Y* dy, const Y* y, int64_t n, bool relu) {
  if (!relu) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) row[i] = T(dy[i]);
    return;
  }
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) row[i] = T(y[i] > 0 ? dy[i] : Y(0));
}

// Adds the gradient of weights and bias; see conv2d_backward. dw or db may be undefined.
void conv2d_weight_gradient(Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w, Tensor y,
                            const Convolution& conf);

}  // namespace brine::BRINE_CPU
