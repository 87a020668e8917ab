// Conversion between heads and images, the layouts of SEA's convolutions, by tiles that are
// transposed in shared memory, and the softmax over columns, a warp for every row.
#include <limits>

#include "tensor/cuda/core/packs.cuh"
#include "tensor/kernels/estimator.h"

namespace brine::cuda {
namespace {

constexpr int kTile = 1024;                   // numbers of a tile
constexpr int kPerThread = kTile / kThreads;  // of a thread

// Tiles of channels x pixels: the fewest channels of a power of two that leave few lanes without
// work, but eight if there are so many, since memory moves 32 bytes at once.
struct Tiling {
  int channels = 1, pixels = kTile;
  int64_t across;  // tiles next to each other

  explicit Tiling(int64_t all) {
    while (channels < 32 && channels < all) channels *= 2;
    for (int less = channels / 2; less >= 8; less /= 2) {
      if ((all + less - 1) / less * less < (all + channels - 1) / channels * channels)
        channels = less;
    }
    pixels = kTile / channels;
    across = (all + channels - 1) / channels;
  }
  // Between the channels of a tile: 32 numbers that are read at once are then in 32 banks.
  __device__ int pitch() const { return pixels + 32 / channels; }
};

// write(pixel, channel, read(pixel, channel)) for all pixels and channels. kToPixels: neighbours in
// memory are pixels where they are read, channels where they are written; else the reverse.
template <bool kToPixels, class T, class Read, class Write>
__global__ void __launch_bounds__(kThreads)
    transpose_kernel(Read read, Write write, Tiling tiling, int64_t pixels, int64_t channels) {
  __shared__ T tile[kTile + 32];
  const int64_t row = quotient(blockIdx.x, tiling.across);
  const int64_t pixel0 = row * tiling.pixels;
  const int64_t channel0 = (blockIdx.x - row * tiling.across) * tiling.channels;
  auto each = [&](bool along_pixels, auto f) {
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) {
      const int e = j * kThreads + int(threadIdx.x);
      const int pixel = along_pixels ? e & (tiling.pixels - 1) : e / tiling.channels;
      const int channel = along_pixels ? e / tiling.pixels : e & (tiling.channels - 1);
      if (pixel0 + pixel < pixels && channel0 + channel < channels)
        f(pixel0 + pixel, channel0 + channel, tile[channel * tiling.pitch() + pixel]);
    }
  };
  each(kToPixels, [&](int64_t pixel, int64_t channel, T& at) { at = read(pixel, channel); });
  __syncthreads();
  each(!kToPixels, [&](int64_t pixel, int64_t channel, T& at) { write(pixel, channel, at); });
}

template <bool kToPixels, class T, class Read, class Write>
void transpose(const char* name, Read read, Write write, int64_t pixels, int64_t channels) {
  if (pixels * channels == 0) return;
  const Tiling tiling(channels);
  const int64_t down = (pixels + tiling.pixels - 1) / tiling.pixels;
  launch(name, transpose_kernel<kToPixels, T, Read, Write>,
         dim3(blocks_for(down * tiling.across, 1)), dim3(kThreads), 0, read, write, tiling, pixels,
         channels);
}

// Pixels as they are in memory, channels last: x [pixels, channels].
template <class T>
struct Pixels {
  T* x;
  int64_t channels;
  __device__ T operator()(int64_t pixel, int64_t channel) const {
    return x[pixel * channels + channel];
  }
  __device__ void operator()(int64_t pixel, int64_t channel, T value) const {
    x[pixel * channels + channel] = value;
  }
};

// The same image as rows of channels by columns, heads [B, H, T, c W], and as pixels, [B, height,
// W, channels], whose rows halo..halo + T are the queries'.
struct Layout {
  int64_t H, tokens, height, W, c, halo;
  RowWidths widths;

  // The offset of column w of channel h c + i of query t in the heads.
  __device__ int64_t place(int64_t b, int64_t t, int64_t channel, int64_t w) const {
    const int64_t h = quotient(channel, c), i = channel - h * c;
    return (((b * H + h) * tokens + t) * c + i) * W + w;
  }
};

Layout layout_of(const Tensor& heads, const Tensor& image, int64_t halo,
                 const DeviceWidths& widths) {
  const int64_t H = heads.dim(1);
  return {H,    heads.dim(2), image.dim(1), image.dim(2), H ? image.dim(3) / H : 0,
          halo, widths.get()};
}

// The numbers of an image from the heads; 0 in the halos and at padding.
template <class T>
struct FromHeads {
  const T* x;
  Layout s;
  __device__ T operator()(int64_t pixel, int64_t channel) const {
    const int64_t row = quotient(pixel, s.W), w = pixel - row * s.W;
    const int64_t b = quotient(row, s.height), t = row - b * s.height - s.halo;
    if (t < 0 || t >= s.widths.valid(b)) return T(0);
    return x[s.place(b, t, channel, w)];
  }
};

// Of pixels without halos: where they are in the heads and in the image.
template <class T>
struct ImageGradient {
  const T* dimage;
  T* dx;
  Layout s;
  __device__ void find(int64_t pixel, int64_t& b, int64_t& t, int64_t& w) const {
    const int64_t row = quotient(pixel, s.W);
    w = pixel - row * s.W;
    b = quotient(row, s.tokens);
    t = row - b * s.tokens;
  }
  __device__ T operator()(int64_t pixel, int64_t channel) const {
    int64_t b, t, w;
    find(pixel, b, t, w);
    if (t >= s.widths.length(b)) return T(0);
    return dimage[((b * s.height + s.halo + t) * s.W + w) * s.H * s.c + channel];
  }
  __device__ void operator()(int64_t pixel, int64_t channel, T value) const {
    int64_t b, t, w;
    find(pixel, b, t, w);
    dx[s.place(b, t, channel, w)] = value;
  }
};

// Heads [B, H, T, K] of pixels (b, t, column).
template <class T>
struct Heads {
  T* y;
  int64_t H, row;  // row = T K, the pixels of a sequence

  __device__ T& at(int64_t pixel, int64_t h) const {
    const int64_t b = quotient(pixel, row);
    return y[(b * H + h) * row + pixel - b * row];
  }
  __device__ T operator()(int64_t pixel, int64_t h) const { return at(pixel, h); }
  __device__ void operator()(int64_t pixel, int64_t h, T value) const { at(pixel, h) = value; }
};

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
  const DeviceWidths widths({.causal = false, .lengths = lengths}, x.dim(2), x.device());
  const Layout s = layout_of(x, image, halo, widths);
  const int64_t channels = image.dim(3);
  dispatch_float(x.dtype(), [&]<class T>() {
    transpose<true, T>("image_from_heads", FromHeads<T>{x.data<T>(), s},
                       Pixels<T>{image.data<T>(), channels}, image.numel() / channels, channels);
  });
}

void image_from_heads_backward(Tensor dx, Tensor dimage, int64_t halo, Tensor lengths) {
  if (dx.numel() == 0) return;
  const DeviceWidths widths({.causal = false, .lengths = lengths}, dx.dim(2), dx.device());
  const Layout s = layout_of(dx, dimage, halo, widths);
  const int64_t channels = dimage.dim(3);
  dispatch_float(dx.dtype(), [&]<class T>() {
    const ImageGradient<T> gradient{dimage.data<T>(), dx.data<T>(), s};
    transpose<false, T>("image_from_heads_backward", gradient, gradient, dx.numel() / channels,
                        channels);
  });
}

void heads_from_image(Tensor y, Tensor image) {
  if (y.numel() == 0) return;
  const int64_t H = y.dim(1);
  dispatch_float(y.dtype(), [&]<class T>() {
    transpose<false, T>("heads_from_image", Pixels<T>{image.data<T>(), H},
                        Heads<T>{y.data<T>(), H, y.dim(2) * y.dim(3)}, y.numel() / H, H);
  });
}

void heads_from_image_backward(Tensor dimage, Tensor dy) {
  if (dimage.numel() == 0) return;
  const int64_t H = dy.dim(1);
  dispatch_float(dy.dtype(), [&]<class T>() {
    transpose<true, T>("heads_from_image_backward",
                       Heads<T>{dy.data<T>(), H, dy.dim(2) * dy.dim(3)},
                       Pixels<T>{dimage.data<T>(), H}, dimage.numel() / H, H);
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

void resampled_identity(Tensor y, Tensor lengths, bool nearest) {
  const int64_t rows = y.dim(0) * y.dim(1), d = y.dim(2);
  const DeviceWidths widths({.causal = false, .lengths = lengths}, y.dim(1), y.device());
  dispatch_float(y.dtype(), [&]<class T>() {
    launch_each("resampled_identity", rows * kWarp, resampled_identity_kernel<T>, y.data<T>(),
                widths.get(), nearest, rows, d);
  });
}

}  // namespace brine::cuda
