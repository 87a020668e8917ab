// What the products of a convolution read, on both devices: a pass multiplies what each position
// of its result reads of an image by the weights.
#pragma once

#include "tensor/base/host_device.h"
#include "tensor/kernels/dense.h"

namespace brine {

struct ConvSizes {
  int64_t B, rows_in, columns_in, C, O, kT, kW, rows, columns, before, rows_out;
  int64_t stride, row_stride;
  const int64_t* lengths;  // null: every row has a token
  bool relu;

  // y is the result or its gradient, lengths where the device reads them.
  ConvSizes(const Tensor& x, const Tensor& w, const Tensor& y, const Convolution& conf,
            const int64_t* lengths)
      : B(x.dim(0)),
        rows_in(x.dim(1)),
        columns_in(x.dim(2)),
        C(x.dim(3)),
        O(w.dim(0)),
        kT(w.dim(2)),
        kW(w.dim(3)),
        rows(convolved_rows(rows_in, kT, conf)),
        columns(y.dim(2)),
        before(conf.halo_before),
        rows_out(y.dim(1)),
        stride(conf.stride),
        row_stride(conf.row_stride),
        lengths(lengths),
        relu(conf.relu) {}

  // Rows of sequence b with tokens.
  BRINE_HD int64_t live(int64_t b) const {
    if (!lengths) return rows;
    const int64_t valid = lengths[b] > 0 ? (lengths[b] + row_stride - 1) / row_stride : 0;
    return valid < rows ? valid : rows;
  }
};

// Of an image [rows, columns, channels]: `positions` of a row of the result each read kT x kW,
// whose rows follow each other by `next`, 1 or -1.
struct ConvReads {
  int64_t rows, columns, channels, kT, kW, next, up, down, first, positions;

  // The row that row r reads by row t of the kernel; -1: none, it reads zeros.
  BRINE_HD int64_t row(int64_t r, int64_t t) const {
    const int64_t at = r * up + t * next, row = down == 1 ? at : at / down;
    return at >= 0 && row * down == at && row < rows ? row : -1;
  }
  // The column that position p reads by column k of the kernel, as above.
  BRINE_HD int64_t column(int64_t p, int64_t k) const {
    const int64_t at = p + first + k;
    return at >= 0 && at < columns ? at : -1;
  }
};

// Of the image, for the result and for the gradient of the weights. A wider one has its margins.
inline ConvReads reads_of_image(const ConvSizes& s) {
  const int64_t margin = (s.columns + s.kW - 1 - s.columns_in) / 2;
  return {s.rows_in, s.columns_in, s.C, s.kT, s.kW, 1, s.stride, 1, -margin, s.columns};
}

// Of the gradient of the sums, for that of the image.
inline ConvReads reads_of_gradient(const ConvSizes& s) {
  const int64_t margin = (s.kW - 1) / 2;
  return {s.rows, s.columns, s.O, s.kT, s.kW, -1, 1, s.stride, -margin, s.columns_in};
}

// Weights [O, C, kT, kW] as the products read them: [kT, kW, C, O]; for the gradient of the image
// [kT, kW, O, C], with the columns in reverse.
inline Tensor transposed_weights(const Tensor& w, bool gradient) {
  Tensor from = w.transpose(0, 2).transpose(1, 3);  // [kT, kW, O, C]
  if (!gradient) from = from.transpose(2, 3);
  const Tensor to = Tensor::empty(from.shape(), w.dtype(), w.device());
  for (int64_t k = 0; k < w.dim(3); ++k) {
    BRINE_CALL(w, copy, to.slice(1, k, 1), from.slice(1, gradient ? w.dim(3) - 1 - k : k, 1));
  }
  return to;
}

}  // namespace brine
