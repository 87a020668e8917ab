// Code shared by the passes of a convolution on a device: its sizes, and the number of rows with
// tokens.
#pragma once

#include "tensor/cuda/core/common.cuh"
#include "tensor/kernels/conv.h"
#include "tensor/kernels/dense.h"

namespace brine::cuda {

struct ConvSizes {
  int64_t B, rows_in, W, C, O, kT, kW;
  int64_t rows, rows_out, before;    // of the result; with its halos; the halo before it
  int64_t dilation, stride, margin;  // margin: offset of the last tap in columns
  int64_t row_stride;                // tokens from one row of the result to the next
  const int64_t* lengths;            // on the device; null: every row has a token
  bool relu;

  ConvSizes(const Tensor& x, const Tensor& w, const Convolution& conf, const OnDevice& lengths)
      : B(x.dim(0)),
        rows_in(x.dim(1)),
        W(x.dim(2)),
        C(x.dim(3)),
        O(w.dim(0)),
        kT(w.dim(2)),
        kW(w.dim(3)),
        rows(convolved_rows(rows_in, kT, conf)),
        rows_out(conf.halo_before + rows + conf.halo_after),
        before(conf.halo_before),
        dilation(conf.dilation),
        stride(conf.stride),
        margin((kW - 1) / 2 * conf.dilation),
        row_stride(conf.row_stride),
        lengths(lengths.data<int64_t>()),
        relu(conf.relu) {
    constexpr int64_t kMax = int64_t(1) << 31;
    check(B < kMax && rows_in < kMax && rows_out < kMax && W < kMax && taps() * C < kMax &&
              taps() * O < kMax && rows_in + kT * dilation < kMax && W + kW * dilation < kMax,
          "conv2d: the image ", x.shape(), " is too large for one call");
  }

  int64_t taps() const { return kT * kW; }
  // Rows of sequence b that contain tokens.
  __device__ int64_t live(int64_t b) const {
    if (!lengths) return rows;
    const int64_t valid = lengths[b] > 0 ? (lengths[b] + row_stride - 1) / row_stride : 0;
    return valid < rows ? valid : rows;
  }
};

// Calls f.operator()<T, Y>() with the type of t, of an image and its weights, and that of sums.
template <class F>
void dispatch_image(Dtype t, F&& f) {
  if (t == Dtype::bf16) return f.template operator()<bf16, float>();
  if (t == Dtype::f16) return f.template operator()<f16, float>();
  dispatch_float(t, [&]<class T>() { f.template operator()<T, T>(); });
}

// Accumulates the gradients of weights and bias; see conv2d_backward. dw or db may be undefined.
void conv2d_weight_gradient(Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w, Tensor y,
                            const Convolution& conf);

}  // namespace brine::cuda
