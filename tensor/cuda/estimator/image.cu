// Conversion between heads and images, the layouts of SEA's convolutions, by copies of views, and
// the softmax over columns, a warp for every row.
#include <limits>

#include "tensor/cuda/core/packs.cuh"
#include "tensor/kernels/dense.h"
#include "tensor/kernels/estimator.h"

namespace brine::cuda {
namespace {

// A view of the rows halo .. halo + T of an image [B, height, W, H c] as heads [B, H, T, c, W].
Tensor as_heads(const Tensor& image, const Tensor& heads, int64_t halo) {
  const int64_t W = image.dim(2), C = image.dim(3), H = heads.dim(1), c = C / H;
  return image.as_strided({image.dim(0), H, heads.dim(2), c, W}, {image.stride(0), c, W * C, 1, C},
                          halo * W * C);
}
Tensor by_columns(const Tensor& heads, const Tensor& image) {
  const int64_t W = image.dim(2);
  return heads.view({heads.dim(0), heads.dim(1), heads.dim(2), heads.dim(3) / W, W});
}

// y [B H, T, size]: the rows at padding, halo + t of `rows`, become 0.
template <class T>
__global__ void padding_kernel(T* y, RowWidths widths, int64_t H, int64_t rows, int64_t halo,
                               int64_t size, int64_t n) {
  if (piece() >= n) return;
  const int64_t row = quotient(piece(), size), head = quotient(row, rows);
  if (row - head * rows - halo >= widths.valid(quotient(head, H))) y[piece()] = 0;
}

void clear_padding(const char* name, const Tensor& y, const Tensor& lengths, int64_t tokens,
                   int64_t H, int64_t rows, int64_t halo) {
  if (!lengths.defined()) return;
  const DeviceWidths widths({.causal = false, .lengths = lengths}, tokens, y.device());
  dispatch_float(y.dtype(), [&]<class T>() {
    launch_each(name, y.numel(), padding_kernel<T>, y.data<T>(), widths.get(), H, rows, halo,
                y.numel() / (y.dim(0) * H * rows), y.numel());
  });
}

template <class T>
__global__ void column_softmax_kernel(T* y, const T* scores, int64_t rows, int64_t H,
                                      int64_t tokens, int64_t K, RowWidths widths) {
  const int64_t r = int64_t(blockIdx.x) * (kThreads / kWarp) + int64_t(threadIdx.x) / kWarp;
  if (r >= rows) return;
  const int64_t lane = int64_t(threadIdx.x) % kWarp, w = widths(r / (H * tokens), r % tokens);
  const T* x = scores + r * K;
  T* out = y + r * K;
  if (w == 0) {
    for (int64_t c = lane; c < K; c += kWarp) out[c] = 0;
    return;
  }
  // Columns without keys get -inf: their exp is 0.
  const T hidden = -std::numeric_limits<T>::infinity();
  auto score = [=](int64_t c) {
    const bool owns = w >= K || math::column_begin(c + 1, w, K) > math::column_begin(c, w, K);
    return owns ? x[c] : hidden;
  };
  T max_score = hidden, sum = 0;
  for (int64_t c = lane; c < K; c += kWarp) max_score = Max{}(score(c), max_score);
  max_score = warp_max(max_score);
  for (int64_t c = lane; c < K; c += kWarp) sum += math::exp(score(c) - max_score);
  const T share = 1 / warp_sum(sum);
  for (int64_t c = lane; c < K; c += kWarp) out[c] = math::exp(score(c) - max_score) * share;
}

// A warp for every row.
template <class T>
__global__ void resampled_identity_kernel(T* y, RowWidths widths, bool nearest, int64_t rows,
                                          int64_t d) {
  const int64_t r = piece() / kWarp;
  if (r >= rows) return;
  const int64_t b = quotient(r, widths.rows), p = r - b * widths.rows, L = widths.valid(b);
  for (int64_t c = threadIdx.x % kWarp; c < d; c += kWarp) {
    y[r * d + c] = p < L ? T(math::resampled_identity(p, c, L, d, nearest)) : T(0);
  }
}

}  // namespace

void image_from_heads(Tensor image, Tensor x, int64_t halo, Tensor lengths) {
  if (image.numel() == 0) return;
  fill(image, 0);
  copy(as_heads(image, x, halo), by_columns(x, image));
  clear_padding("image_from_heads", image, lengths, x.dim(2), 1, image.dim(1), halo);
}

void image_from_heads_backward(Tensor dx, Tensor dimage, int64_t halo, Tensor lengths) {
  if (dx.numel() == 0) return;
  copy(by_columns(dx, dimage), as_heads(dimage, dx, halo));
  clear_padding("image_from_heads_backward", dx, lengths, dx.dim(2), dx.dim(1), dx.dim(2), 0);
}

void heads_from_image(Tensor y, Tensor image) { copy(y, image.permute({0, 3, 1, 2})); }

void heads_from_image_backward(Tensor dimage, Tensor dy) { copy(dimage, dy.permute({0, 2, 3, 1})); }

void column_softmax(Tensor y, Tensor scores, Visibility visible) {
  if (y.numel() == 0) return;
  const DeviceWidths widths(visible, y.dim(2), y.device());
  dispatch_float(y.dtype(), [&]<class T>() {
    launch("column_softmax", column_softmax_kernel<T>, dim3(blocks_for(y.rows(), kThreads / kWarp)),
           dim3(kThreads), 0, y.data<T>(), scores.data<T>(), y.rows(), y.dim(1), y.dim(2), y.dim(3),
           widths.get());
  });
}

void resampled_identity(Tensor y, Tensor lengths, bool nearest) {
  const int64_t rows = y.dim(0) * y.dim(1), d = y.dim(2);
  const DeviceWidths widths({.causal = false, .lengths = lengths}, y.dim(1), y.device());
  dispatch_float(y.dtype(), [&]<class T>() {
    launch_each("resampled_identity", rows * kWarp, resampled_identity_kernel<T>, y.data<T>(),
                widths.get(), nearest, rows, d);
  });
}

}  // namespace brine::cuda
