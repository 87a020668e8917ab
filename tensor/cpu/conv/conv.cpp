// Convolution in pieces of several rows, one thread each: forward and the gradient of the image.
//
// A piece of a channels-last image is contiguous, and because the token axis is not padded it is
// the complete image of a smaller convolution. Pieces stay in L2, where the primitives are as fast
// in this layout as in that of oneDNN, and the bits do not depend on the number of threads.
#include "tensor/cpu/conv/conv.h"

#include <vector>

#include "tensor/base/parallel.h"
#include "tensor/cpu/core/gemm_f64.h"
#include "tensor/cpu/core/onednn.h"

namespace brine::BRINE_CPU {
namespace {

// Rows of a piece: about 64, more if a row is little work, in nearly equal pieces.
int64_t piece_rows(const ConvSizes& s, int64_t rows) {
  int64_t work = 2 * s.W * s.C * s.O * s.kT * s.kW;
  int64_t wanted = std::clamp<int64_t>(15000000 / std::max<int64_t>(work, 1), 64, 256);
  int64_t pieces = std::max<int64_t>(1, (rows + wanted / 2) / wanted);
  return (rows + pieces - 1) / pieces;
}

onednn::ImageConvolution image_of(const ConvSizes& s, const Convolution& conf, int64_t rows,
                                  bool half) {
  return {.rows = rows,
          .columns = s.W,
          .in = s.C,
          .out = s.O,
          .kernel_t = s.kT,
          .kernel_w = s.kW,
          .dilation = conf.dilation,
          .stride = conf.stride,
          .half = half};
}

bool is_product(const onednn::ImageConvolution& c) {
  return c.kernel_t == 1 && c.kernel_w == 1 && c.stride == 1;
}

template <class T>
requires(!std::is_same_v<T, double>) void product(int64_t M, int64_t N, int64_t K, const T* a,
                                                  const T* b, bool tb, float* y) {
  onednn::gemm({.M = M, .N = N, .K = K, .tb = tb, .lda = K, .ldb = tb ? K : N, .ldc = N}, a, b, y);
}

void product(int64_t M, int64_t N, int64_t K, const double* a, const double* b, bool tb,
             double* y) {
  Strided<const double> right = {b, tb ? 1 : N, tb ? K : 1};
  gemm_f64(M, N, K, 1, {a, K, 1}, right, 0, {y, N, 1});
}

template <class T>
void bias_relu(T* y, int64_t positions, int64_t O, const T* bias, bool relu) {
  for (int64_t i = 0; i < positions; ++i, y += O) {
    for (int64_t o = 0; o < O; ++o) {
      T v = bias ? y[o] + bias[o] : y[o];
      y[o] = relu && !(v > 0) ? T(0) : v;
    }
  }
}

// ---- f64, which oneDNN does not support: weights as [kT, kW, C, O] forward, [kT, kW, O, C]
// backward
Tensor packed(const ConvSizes& s, const Convolution&, onednn::Pass pass, const double* w) {
  bool forward = pass == onednn::Pass::forward;
  Tensor to = Tensor::empty({s.kT, s.kW, forward ? s.C : s.O, forward ? s.O : s.C}, Dtype::f64);
  double* out = to.data<double>();
  for (int64_t o = 0; o < s.O; ++o) {
    for (int64_t c = 0; c < s.C; ++c) {
      for (int64_t k = 0; k < s.kT * s.kW; ++k) {
        int64_t at = forward ? (k * s.C + c) * s.O + o : (k * s.O + o) * s.C + c;
        out[at] = w[(o * s.C + c) * s.kT * s.kW + k];
      }
    }
  }
  return to;
}

// to [n] += sum over channels of from [channels] w [channels, n]
void add_tap(double* to, int64_t n, const double* from, int64_t channels, const double* w) {
  for (int64_t c = 0; c < channels; ++c, w += n) {
    double v = from[c];
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] += v * w[i];
  }
}

void convolve(const onednn::ImageConvolution& c, const double* x, const double* w,
              const double* bias, double* y) {
  int64_t margin = (c.kernel_w - 1) / 2 * c.dilation;
  for (int64_t r = 0; r < c.rows; ++r) {
    for (int64_t column = 0; column < c.columns; ++column, y += c.out) {
      for (int64_t o = 0; o < c.out; ++o) y[o] = c.bias ? bias[o] : 0;
      for (int64_t tap = 0; tap < c.kernel_t * c.kernel_w; ++tap) {
        int64_t row = r * c.stride + tap / c.kernel_w * c.dilation;
        int64_t from = column + tap % c.kernel_w * c.dilation - margin;
        if (from < 0 || from >= c.columns) continue;
        add_tap(y, c.out, x + (row * c.columns + from) * c.in, c.in, w + tap * c.in * c.out);
      }
      if (c.relu) bias_relu<double>(y, 1, c.out, nullptr, true);
    }
  }
}

void convolve_data_gradient(const onednn::ImageConvolution& c, double* dx, const double* w,
                            const double* dy) {
  int64_t margin = (c.kernel_w - 1) / 2 * c.dilation;
  for (int64_t r = 0; r < c.rows; ++r) {
    for (int64_t column = 0; column < c.columns; ++column, dx += c.in) {
      std::fill(dx, dx + c.in, 0.0);
      for (int64_t tap = 0; tap < c.kernel_t * c.kernel_w; ++tap) {
        int64_t row = r + (c.kernel_t - 1 - tap / c.kernel_w) * c.dilation;
        int64_t from = column - tap % c.kernel_w * c.dilation + margin;
        if (from < 0 || from >= c.columns) continue;
        add_tap(dx, c.in, dy + (row * c.columns + from) * c.out, c.out, w + tap * c.in * c.out);
      }
    }
  }
}

// ---- f32 and bf16
template <class T>
requires(!std::is_same_v<T, double>) Tensor
    packed(const ConvSizes& s, const Convolution& conf, onednn::Pass pass, const T* w) {
  onednn::ImageConvolution c = image_of(s, conf, 64, std::is_same_v<T, bf16>);
  if (pass == onednn::Pass::data_gradient) c.stride = 1;
  Tensor to = Tensor::empty({onednn::packed_weights_size(c, pass)}, DtypeOf<T>::value);
  onednn::pack_weights(c, pass, w, to.data<T>());
  return to;
}

using onednn::convolve;
using onednn::convolve_data_gradient;

// Rows of a page or more are first copied into the cache: the primitives read several of them
// concurrently, and the CPU prefetches such access patterns too late (48 channels of 32 columns: 66
// against 79 GFLOP/s on one core). Shorter rows are read in place.
template <class T>
bool is_long_row(int64_t elements) {
  return elements * int64_t(sizeof(T)) >= 4096;
}

// x and w have type T, the others type Y.
template <class T, class Y = T>
void forward(Tensor y, Tensor x, Tensor w, Tensor b, const Convolution& conf) {
  const ConvSizes s(x, w, conf);
  const int64_t piece = piece_rows(s, s.rows), pieces = (s.rows + piece - 1) / piece;
  const int64_t row = s.W * s.O;
  const Y* bias = b.defined() ? b.data<Y>() : nullptr;
  constexpr bool half = std::is_same_v<T, bf16>;
  bool one_by_one = is_product(image_of(s, conf, 1, half));
  Tensor weights = one_by_one ? w : packed(s, conf, onednn::Pass::forward, w.data<T>());
  parallel_for(s.B * pieces, 1, [&](int64_t begin, int64_t) {
    int64_t sequence = begin / pieces, r = begin % pieces * piece;
    int64_t n = std::min(piece, s.rows - r);
    int64_t live = std::clamp<int64_t>(live_rows(conf, sequence, s.rows) - r, 0, n);
    Y* to = y.data<Y>() + s.result_row(sequence, r);
    const T* from = x.data<T>() + (sequence * s.rows_in + r * conf.stride) * s.W * s.C;
    if (live > 0 && one_by_one) {
      product(n * s.W, s.O, s.C, from, w.data<T>(), true, to);
      bias_relu(to, n * s.W, s.O, bias, conf.relu);
    } else if (live > 0) {
      onednn::ImageConvolution c = image_of(s, conf, n, half);
      c.bias = bias != nullptr;
      c.relu = conf.relu;
      if (is_long_row<T>(s.W * s.C)) {
        thread_local std::vector<T> cached;
        cached.assign(from, from + ((n - 1) * conf.stride + 1 + s.reach) * s.W * s.C);
        from = cached.data();
      }
      convolve(c, from, weights.data<T>(), bias, to);
    }
    std::fill(to + live * row, to + n * row, Y(0));
    if (r == 0) std::fill(to - conf.halo_before * row, to, Y(0));
    if (r + n == s.rows) std::fill(to + n * row, to + (n + conf.halo_after) * row, Y(0));
  });
}

// The gradient of the sums, as the data gradient reads it: row i is row (i - reach) / stride of the
// result; rows between the strides, outside, and of padding are 0. False when all rows are 0.
template <class T, class Y>
bool gather_gradient(T* out, int64_t first, int64_t n, int64_t sequence, const ConvSizes& s,
                     const Tensor& dy, const Tensor& y, const Convolution& conf) {
  int64_t live = live_rows(conf, sequence, s.rows), row = s.W * s.O;
  bool any = false;
  for (int64_t i = 0; i < n; ++i, out += row) {
    int64_t at = first + i - s.reach, r = at / conf.stride;
    if (at < 0 || at % conf.stride != 0 || r >= live) {
      std::fill(out, out + row, T(0));
      continue;
    }
    int64_t offset = s.result_row(sequence, r);
    sum_gradient_row(out, dy.data<Y>() + offset, conf.relu ? y.data<Y>() + offset : nullptr, row,
                     conf.relu);
    any = true;
  }
  return any;
}

// w has type T, the others type Y.
template <class T, class Y = T>
void data_gradient(Tensor dx, Tensor dy, Tensor w, Tensor y, const ConvSizes& s,
                   const Convolution& conf) {
  const int64_t piece = piece_rows(s, s.rows_in), pieces = (s.rows_in + piece - 1) / piece;
  constexpr bool half = std::is_same_v<T, bf16>;
  bool one_by_one = is_product(image_of(s, conf, 1, half));
  Tensor weights = one_by_one ? w : packed(s, conf, onednn::Pass::data_gradient, w.data<T>());
  parallel_for(s.B * pieces, 1, [&](int64_t begin, int64_t) {
    thread_local std::vector<T> sums;
    int64_t sequence = begin / pieces, r = begin % pieces * piece;
    int64_t n = std::min(piece, s.rows_in - r);
    sums.resize(size_t((n + s.reach) * s.W * s.O));
    Y* to = dx.data<Y>() + (sequence * s.rows_in + r) * s.W * s.C;
    bool plain = !half && !conf.relu && conf.stride == 1 && r >= s.reach &&
                 r + n <= live_rows(conf, sequence, s.rows) && !is_long_row<T>(s.W * s.O);
    const T* from = sums.data();
    if constexpr (!half) {
      if (plain) from = dy.data<T>() + s.result_row(sequence, r - s.reach);
    }
    if (!plain && !gather_gradient<T, Y>(sums.data(), r, n + s.reach, sequence, s, dy, y, conf)) {
      std::fill(to, to + n * s.W * s.C, Y(0));
    } else if (one_by_one) {
      product(n * s.W, s.C, s.O, from, w.data<T>(), false, to);
    } else {
      onednn::ImageConvolution c = image_of(s, conf, n, half);
      c.stride = 1;
      convolve_data_gradient(c, to, weights.data<T>(), from);
    }
  });
}

}  // namespace

namespace {

// Whether a type has 16 bits and the CPU does not multiply it.
bool is_emulated(Dtype t) {
  return t == Dtype::f16 || (t == Dtype::bf16 && !onednn::has_bf16_gemm());
}

// bf16 if the CPU multiplies it, else the same values in f32.
Tensor usable(const Tensor& t) { return is_emulated(t.dtype()) ? t.to(Dtype::f32) : t; }

}  // namespace

void conv2d(Tensor y, Tensor x, Tensor w, Tensor b, Convolution conf) {
  x = usable(x);
  w = usable(w);
  if (x.dtype() == Dtype::bf16) return forward<bf16, float>(y, x, w, b, conf);
  dispatch_float(x.dtype(), [&]<class T>() { forward<T>(y, x, w, b, conf); });
}

void conv2d_backward(Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w, Tensor y,
                     Convolution conf) {
  const Tensor whole = dy;
  if (dx.defined()) {
    // The gradient is rounded with the weights, by the kernel or in this function.
    if (is_emulated(w.dtype())) dy = dy.to(w.dtype()).to(Dtype::f32);
    w = usable(w);
    const ConvSizes s(x, w, conf);
    if (w.dtype() == Dtype::bf16) {
      data_gradient<bf16, float>(dx, dy, w, y, s, conf);
    } else {
      dispatch_float(w.dtype(), [&]<class T>() { data_gradient<T>(dx, dy, w, y, s, conf); });
    }
  }
  if (!dw.defined() && !db.defined()) return;
  if (item_size(x.dtype()) == 2) x = x.to(Dtype::f32);
  conv2d_weight_gradient(dw, db, whole, x, w, y, conf);
}

}  // namespace brine::BRINE_CPU
