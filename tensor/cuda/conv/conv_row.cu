// A causal convolution one row at a time, from a window of the last rows.
#include "tensor/cuda/core/common.cuh"
#include "tensor/kernels/conv.h"

namespace brine::cuda {
namespace {

constexpr int kColumns = 4;  // of a block
constexpr int kParts = 8;    // threads that share one output's sum

// A thread moves one element of every row up, in order.
template <class T>
__global__ void push_row_kernel(T* window, const T* row, int64_t sequences, int64_t rows,
                                int64_t size, int64_t step, int64_t begin, int64_t width) {
  const int64_t i = piece();
  if (i >= sequences * size) return;
  const int64_t b = i / size, at = i % size;
  T* to = window + b * step + at;
  for (int64_t r = 0; r + 1 < rows; ++r) to[r * size] = to[(r + 1) * size];
  if (at >= begin && at < begin + width) to[(rows - 1) * size] = row[b * width + at - begin];
}

// packed [taps, C, padded] of w [O, C, taps]; 0 from O on.
template <class T>
__global__ void pack_row_weights_kernel(T* packed, const T* w, int64_t O, int64_t C, int64_t taps,
                                        int64_t padded) {
  const int64_t i = piece();
  if (i >= taps * C * padded) return;
  const int64_t o = i % padded, c = i / padded % C, tap = i / padded / C;
  packed[i] = o < O ? w[(o * C + c) * taps + tap] : T(0);
}

template <class T>
struct RowConvolution {
  T* y;
  const T *window, *packed, *bias;
  int64_t W, C, O, padded, kW, dilation;
  int64_t terms;      // kT kW C
  int64_t row, step;  // numbers from one row of the window, and from one sequence, to the next
  bool relu;
};

// A block: 32 outputs of 4 columns of one sequence. Part p of 8 sums every 8th term; the parts are
// then added in order.
template <class T>
__global__ void __launch_bounds__(kWarp* kParts) convolve_row_kernel(RowConvolution<T> p) {
  __shared__ T parts[kParts][kColumns][kWarp];
  const int lane = int(threadIdx.x) % kWarp, part = int(threadIdx.x) / kWarp;
  const int64_t groups = (p.W + kColumns - 1) / kColumns, b = blockIdx.x / groups;
  const int64_t column = blockIdx.x % groups * kColumns, o = int64_t(blockIdx.y) * kWarp + lane;
  const T* window = p.window + b * p.step + column * p.C;
  T sum[kColumns] = {};
  for (int64_t i = part; i < p.terms; i += kParts) {
    const int64_t tap = i / p.C, c = i % p.C;
    const T* x = window + (tap / p.kW * p.row + tap % p.kW * p.C) * p.dilation + c;
    const T w = o < p.O ? p.packed[i * p.padded + o] : T(0);
#pragma unroll
    for (int k = 0; k < kColumns; ++k) {
      if (column + k < p.W) sum[k] += x[k * p.C] * w;
    }
  }
#pragma unroll
  for (int k = 0; k < kColumns; ++k) parts[part][k][lane] = sum[k];
  __syncthreads();
  if (part >= kColumns || column + part >= p.W || o >= p.O) return;
  T value = 0;
#pragma unroll
  for (int k = 0; k < kParts; ++k) value += parts[k][part][lane];
  if (p.bias) value += p.bias[o];
  p.y[(b * p.W + column + part) * p.O + o] = p.relu && !(value > 0) ? T(0) : value;
}

}  // namespace

void push_row(Tensor window, Tensor row, int64_t margin) {
  const int64_t W = row.dim(1), C = row.dim(2), size = window.dim(2) * C;
  dispatch_float(row.dtype(), [&]<class T>() {
    launch_each("push_row", row.dim(0) * size, push_row_kernel<T>, window.data<T>(), row.data<T>(),
                row.dim(0), window.dim(1), size, window.stride(0), margin * C, W * C);
  });
}

void pack_row_weights(Tensor packed, Tensor w) {
  dispatch_float(w.dtype(), [&]<class T>() {
    launch_each("pack_row_weights", packed.numel(), pack_row_weights_kernel<T>, packed.data<T>(),
                w.data<T>(), w.dim(0), w.dim(1), w.dim(2) * w.dim(3), packed.dim(-1));
  });
}

void convolve_row(Tensor y, Tensor window, Tensor packed, Tensor b, int64_t dilation, bool relu) {
  if (y.numel() == 0) return;
  const int64_t B = y.dim(0), W = y.dim(1), O = y.dim(2), C = window.dim(3);
  dispatch_float(y.dtype(), [&]<class T>() {
    const RowConvolution<T> p{.y = y.data<T>(),
                              .window = window.data<T>(),
                              .packed = packed.data<T>(),
                              .bias = b.defined() ? b.data<T>() : nullptr,
                              .W = W,
                              .C = C,
                              .O = O,
                              .padded = packed.dim(3),
                              .kW = packed.dim(1),
                              .dilation = dilation,
                              .terms = packed.dim(0) * packed.dim(1) * C,
                              .row = window.dim(2) * C,
                              .step = window.stride(0),
                              .relu = relu};
    const dim3 grid(blocks_for(B * ((W + kColumns - 1) / kColumns), 1), blocks_for(O, kWarp));
    launch("convolve_row", convolve_row_kernel<T>, grid, dim3(kWarp * kParts), 0, p);
  });
}

}  // namespace brine::cuda
