// Nearest upsampling of an image to tokens x columns, and its gradient.
#include "tensor/cuda/core/packs.cuh"
#include "tensor/kernels/conv.h"

namespace brine::cuda {
namespace {

struct Sizes {
  int64_t B, R, W, C;  // of the small image
  int64_t T, K, rows;  // tokens and columns of the large one; its rows with the halos
  int64_t before, stride;
  const int64_t* lengths;  // on the device, or null

  Sizes(const Tensor& small, const Tensor& large, const Upsampling& conf, const OnDevice& lengths)
      : B(small.dim(0)),
        R(small.dim(1)),
        W(small.dim(2)),
        C(small.dim(3)),
        T(conf.tokens),
        K(conf.columns),
        rows(large.dim(1)),
        before(conf.halo_before),
        stride(conf.stride),
        lengths(lengths.data<int64_t>()) {}

  __device__ int64_t live(int64_t b) const {
    if (!lengths) return T;
    return lengths[b] < 0 ? 0 : (lengths[b] < T ? lengths[b] : T);
  }
};

// One thread per number of y.
template <class T>
__global__ void upsample_kernel(T* y, const T* x, Sizes s, int64_t n) {
  const int64_t i = piece();
  if (i >= n) return;
  const int64_t pixel = quotient(i, s.C), row = quotient(pixel, s.K), b = quotient(row, s.rows);
  const int64_t t = row - b * s.rows - s.before, w = quotient((pixel - row * s.K) * s.W, s.K);
  const int64_t from = ((b * s.R + quotient(t, s.stride)) * s.W + w) * s.C + i - pixel * s.C;
  y[i] = t >= 0 && t < s.live(b) ? x[from] : T(0);
}

// One thread per number of dx: it sums the large image's numbers that were read from it.
template <class T>
__global__ void upsample_backward_kernel(T* dx, const T* dy, Sizes s, int64_t n) {
  const int64_t i = piece();
  if (i >= n) return;
  const int64_t pixel = quotient(i, s.C), c = i - pixel * s.C;
  const int64_t row = quotient(pixel, s.W), w = pixel - row * s.W, b = quotient(row, s.R);
  const int64_t first = (row - b * s.R) * s.stride, live = s.live(b);
  const int64_t last = first + s.stride < live ? first + s.stride : live;
  // Columns k with floor(k W / K) = w.
  const int64_t begin = quotient(w * s.K + s.W - 1, s.W);
  const int64_t end = quotient((w + 1) * s.K + s.W - 1, s.W);
  T sum = 0;
  for (int64_t t = first; t < last; ++t) {
    const T* from = dy + (b * s.rows + s.before + t) * s.K * s.C + c;
    for (int64_t k = begin; k < end; ++k) sum += from[k * s.C];
  }
  dx[i] = sum;
}

}  // namespace

void upsample(Tensor y, Tensor x, Upsampling conf) {
  const OnDevice lengths(conf.lengths, x.device());
  dispatch_float(x.dtype(), [&]<class T>() {
    launch_each("upsample", y.numel(), upsample_kernel<T>, y.data<T>(), x.data<T>(),
                Sizes(x, y, conf, lengths), y.numel());
  });
}

void upsample_backward(Tensor dx, Tensor dy, Upsampling conf) {
  const OnDevice lengths(conf.lengths, dx.device());
  dispatch_float(dx.dtype(), [&]<class T>() {
    launch_each("upsample_backward", dx.numel(), upsample_backward_kernel<T>, dx.data<T>(),
                dy.data<T>(), Sizes(dx, dy, conf, lengths), dx.numel());
  });
}

}  // namespace brine::cuda
