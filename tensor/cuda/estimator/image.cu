// Conversion between heads and images, the layouts of SEA's convolutions, by tiles that are
// transposed in shared memory, and the softmax over columns, a warp for every row.
#include <limits>

#include "tensor/cuda/core/common.cuh"
#include "tensor/kernels/estimator.h"

namespace brine::cuda {
namespace {

constexpr int kTile = 32;                 // pixels and channels of a tile
constexpr int kLines = kThreads / kTile;  // of a tile that the block processes at once

// The same image as rows of channels by columns, heads [B, H, T, c W], and as pixels,
// [B, height, W, channels], whose rows halo..halo + T are the queries'. Tiles of its rows, the
// channels' fastest.
struct Layout {
  int64_t H, tokens, height, W, c, halo;
  RowWidths widths;

  __device__ __host__ int64_t channels() const { return H * c; }
  __host__ int64_t across() const { return (channels() + kTile - 1) / kTile; }
  __host__ int64_t tiles() const { return across() * ((W + kTile - 1) / kTile); }
  // The offset of channel h c + i of query t in the heads.
  __device__ int64_t line(int64_t b, int64_t t, int64_t channel) const {
    const int64_t h = channel / c, i = channel % c;
    return (((b * H + h) * tokens + t) * c + i) * W;
  }
};

Layout layout_of(const Tensor& heads, const Tensor& image, int64_t halo,
                 const DeviceWidths& widths) {
  const int64_t H = heads.dim(1);
  return {H,    heads.dim(2), image.dim(1), image.dim(2), H ? image.dim(3) / H : 0,
          halo, widths.get()};
}

// The tile of the calling block: row r of `rows` and the first channel and column.
struct Place {
  int64_t r, channel, w;

  __device__ Place(int64_t tiles, int64_t across) {
    const int64_t tile = int64_t(blockIdx.x) % tiles;
    r = int64_t(blockIdx.x) / tiles;
    channel = tile % across * kTile;
    w = tile / across * kTile;
  }
};

template <class T>
__global__ void image_kernel(T* image, const T* x, Layout s, int64_t tiles, int64_t across) {
  __shared__ T tile[kTile][kTile + 1];  // [channel, column]
  const Place at(tiles, across);
  const int64_t b = at.r / s.height, t = at.r % s.height - s.halo;
  const bool visible = t >= 0 && t < s.widths.valid(b);
  const int x0 = int(threadIdx.x) % kTile, y0 = int(threadIdx.x) / kTile;
  for (int j = y0; visible && j < kTile; j += kLines) {
    const int64_t channel = at.channel + j, w = at.w + x0;
    if (channel < s.channels() && w < s.W) tile[j][x0] = x[s.line(b, t, channel) + w];
  }
  __syncthreads();
  for (int j = y0; j < kTile; j += kLines) {
    const int64_t channel = at.channel + x0, w = at.w + j;
    if (channel >= s.channels() || w >= s.W) continue;
    image[(at.r * s.W + w) * s.channels() + channel] = visible ? tile[x0][j] : T(0);
  }
}

template <class T>
__global__ void image_backward_kernel(T* dx, const T* dimage, Layout s, int64_t tiles,
                                      int64_t across) {
  __shared__ T tile[kTile][kTile + 1];  // [column, channel]
  const Place at(tiles, across);
  const int64_t b = at.r / s.tokens, t = at.r % s.tokens;
  const bool visible = t < s.widths.length(b);
  const int64_t from = (b * s.height + s.halo + t) * s.W;
  const int x0 = int(threadIdx.x) % kTile, y0 = int(threadIdx.x) / kTile;
  for (int j = y0; visible && j < kTile; j += kLines) {
    const int64_t channel = at.channel + x0, w = at.w + j;
    if (channel < s.channels() && w < s.W)
      tile[j][x0] = dimage[(from + w) * s.channels() + channel];
  }
  __syncthreads();
  for (int j = y0; j < kTile; j += kLines) {
    const int64_t channel = at.channel + j, w = at.w + x0;
    if (channel >= s.channels() || w >= s.W) continue;
    dx[s.line(b, t, channel) + w] = visible ? tile[x0][j] : T(0);
  }
}

// Sizes of heads [B, H, T, K] read from an image [B, rows, W, H].
struct Reading {
  int64_t H, tokens, K, rows, W, stride;
};

Reading reading_of(const Tensor& heads, const Tensor& image, int64_t stride) {
  return {heads.dim(1), heads.dim(2), heads.dim(3), image.dim(1), image.dim(2), stride};
}

// A block for every query: the image row that its heads read stays in the cache.
template <class T>
__global__ void heads_kernel(T* y, const T* image, Reading s) {
  const int64_t b = blockIdx.x / s.tokens, t = blockIdx.x % s.tokens;
  const T* in = image + (b * s.rows + t / s.stride) * s.W * s.H;
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
  for (int64_t h = warp; h < s.H; h += kThreads / kWarp) {
    T* out = y + ((b * s.H + h) * s.tokens + t) * s.K;
    for (int64_t c = lane; c < s.K; c += kWarp) {
      const int64_t w = s.K == s.W ? c : c * s.W / s.K;
      out[c] = in[w * s.H + h];
    }
  }
}

// Pixel w is read by the columns c with floor(c W / K) = w of `stride` queries.
template <class T>
__global__ void heads_backward_kernel(T* dimage, const T* dy, Reading s, int64_t tiles,
                                      int64_t across) {
  __shared__ T tile[kTile][kTile + 1];  // [head, column]
  const Place at(tiles, across);
  const int64_t b = at.r / s.rows, first = at.r % s.rows * s.stride;
  const int64_t last = first + s.stride < s.tokens ? first + s.stride : s.tokens;
  const int x0 = int(threadIdx.x) % kTile, y0 = int(threadIdx.x) / kTile;
  const int64_t column = at.w + x0;
  const int64_t begin = (column * s.K + s.W - 1) / s.W;
  const int64_t end = column < s.W ? ((column + 1) * s.K + s.W - 1) / s.W : begin;
  for (int j = y0; j < kTile; j += kLines) {
    const int64_t h = at.channel + j;
    if (h >= s.H) continue;
    T sum = 0;
    for (int64_t t = first; t < last; ++t) {
      const T* in = dy + ((b * s.H + h) * s.tokens + t) * s.K;
      for (int64_t c = begin; c < end; ++c) sum += in[c];
    }
    tile[j][x0] = sum;
  }
  __syncthreads();
  for (int j = y0; j < kTile; j += kLines) {
    const int64_t h = at.channel + x0, w = at.w + j;
    if (h < s.H && w < s.W) dimage[(at.r * s.W + w) * s.H + h] = tile[x0][j];
  }
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
  T most = hidden, sum = 0;
  for (int64_t c = lane; c < K; c += kWarp) most = Max{}(score(c), most);
  most = warp_max(most);
  for (int64_t c = lane; c < K; c += kWarp) sum += math::exp(score(c) - most);
  const T share = 1 / warp_sum(sum);
  for (int64_t c = lane; c < K; c += kWarp) out[c] = math::exp(score(c) - most) * share;
}

}  // namespace

void image_from_heads(Tensor image, Tensor x, int64_t halo, Tensor lengths) {
  const DeviceWidths widths({.causal = false, .lengths = lengths}, x.dim(2), x.device());
  const Layout s = layout_of(x, image, halo, widths);
  if (image.numel() == 0) return;
  dispatch_float(x.dtype(), [&]<class T>() {
    launch("image_from_heads", image_kernel<T>,
           dim3(blocks_for(image.dim(0) * s.height * s.tiles(), 1)), dim3(kThreads), 0,
           image.data<T>(), x.data<T>(), s, s.tiles(), s.across());
  });
}

void image_from_heads_backward(Tensor dx, Tensor dimage, int64_t halo, Tensor lengths) {
  const DeviceWidths widths({.causal = false, .lengths = lengths}, dx.dim(2), dx.device());
  const Layout s = layout_of(dx, dimage, halo, widths);
  if (dx.numel() == 0) return;
  dispatch_float(dx.dtype(), [&]<class T>() {
    launch("image_from_heads_backward", image_backward_kernel<T>,
           dim3(blocks_for(dx.dim(0) * s.tokens * s.tiles(), 1)), dim3(kThreads), 0, dx.data<T>(),
           dimage.data<T>(), s, s.tiles(), s.across());
  });
}

void heads_from_image(Tensor y, Tensor image, int64_t stride) {
  if (y.numel() == 0) return;
  const Reading s = reading_of(y, image, stride);
  dispatch_float(y.dtype(), [&]<class T>() {
    launch("heads_from_image", heads_kernel<T>, dim3(blocks_for(y.dim(0) * s.tokens, 1)),
           dim3(kThreads), 0, y.data<T>(), image.data<T>(), s);
  });
}

void heads_from_image_backward(Tensor dimage, Tensor dy, int64_t stride) {
  if (dimage.numel() == 0) return;
  const Reading s = reading_of(dy, dimage, stride);
  const int64_t across = (s.H + kTile - 1) / kTile, tiles = across * ((s.W + kTile - 1) / kTile);
  dispatch_float(dy.dtype(), [&]<class T>() {
    launch("heads_from_image_backward", heads_backward_kernel<T>,
           dim3(blocks_for(dimage.dim(0) * s.rows * tiles, 1)), dim3(kThreads), 0, dimage.data<T>(),
           dy.data<T>(), s, tiles, across);
  });
}

void column_softmax(Tensor y, Tensor scores, Visibility visible) {
  if (y.numel() == 0) return;
  const DeviceWidths widths(visible, y.dim(2), y.device());
  dispatch_float(y.dtype(), [&]<class T>() {
    launch("column_softmax", column_softmax_kernel<T>, dim3(blocks_for(y.rows(), kThreads / kWarp)),
           dim3(kThreads), 0, y.data<T>(), scores.data<T>(), y.rows(), y.dim(1), y.dim(2), y.dim(3),
           widths.get());
  });
}

}  // namespace brine::cuda
