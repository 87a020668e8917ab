// Convolution as products: what each position reads is written side by side, and multiplied by the
// weights, a sequence at a time, so that its bits do not depend on other sequences.
#include "tensor/cuda/core/packs.cuh"
#include "tensor/kernels/conv.h"
#include "tensor/kernels/conv_reads.h"

namespace brine::cuda {
namespace {

constexpr int64_t kPiece = int64_t(1) << 26;  // numbers that are written side by side at a time

// to [rows from `from` on, positions, kT, kW, channels], n units of any type that divides a pixel.
template <class T>
__global__ void unfold_kernel(T* to, const T* image, ConvReads read, int64_t from, int64_t n) {
  const int64_t i = piece();
  if (i >= n) return;
  const int64_t at = quotient(i, read.channels), tap = quotient(at, read.kW);
  const int64_t position = quotient(tap, read.kT), r = quotient(position, read.positions);
  const int64_t row = read.row(from + r, tap - position * read.kT);
  const int64_t column = read.column(position - r * read.positions, at - tap * read.kW);
  const int64_t c = i - at * read.channels;
  to[i] = row >= 0 && column >= 0 ? image[(row * read.columns + column) * read.channels + c] : T{};
}

// y [B, rows_out, columns, O] += bias, and ReLU; 0 in rows without a token.
template <class Y>
__global__ void finish_kernel(Y* y, const Y* bias, ConvSizes s, int64_t n) {
  const int64_t i = piece();
  if (i >= n) return;
  const int64_t pixel = quotient(i, s.O), row = quotient(pixel, s.columns);
  const int64_t b = quotient(row, s.rows_out);
  const int64_t r = row - b * s.rows_out - s.before;
  if (r < 0 || r >= s.live(b)) {
    y[i] = 0;
    return;
  }
  const Y value = bias ? y[i] + bias[i - pixel * s.O] : y[i];
  y[i] = s.relu && !(value > 0) ? Y(0) : value;
}

// g [B, rows, columns, O] = dy of the sums: 0 in rows without a token, and where ReLU cut.
template <class Y>
__global__ void gradient_kernel(Y* g, const Y* dy, const Y* y, ConvSizes s, int64_t n) {
  const int64_t i = piece();
  if (i >= n) return;
  const int64_t row = quotient(i, s.columns * s.O), b = quotient(row, s.rows);
  const int64_t at = i + (b * (s.rows_out - s.rows) + s.before) * s.columns * s.O;
  g[i] = row - b * s.rows < s.live(b) && (!s.relu || y[at] > 0) ? dy[at] : Y(0);
}

int64_t line_of(const ConvReads& read) {
  return read.positions * read.kT * read.kW * read.channels;
}

// Calls f(b, r, n, a) for pieces of n rows from r on of each of `count` rows of sequence b: a is
// what they read, [n positions, kT kW channels].
template <class F>
void each_product(const char* name, const Tensor& image, const ConvReads& read, int64_t count,
                  F&& f) {
  const int64_t pieces = (count * line_of(read) + kPiece - 1) / kPiece;
  const int64_t step = pieces > 1 ? (count + pieces - 1) / pieces : count;  // nearly equal pieces
  const int64_t taps = read.kT * read.kW * read.channels;
  const bool copies = read.kT * read.kW > 1 || read.up > 1 || read.down > 1;
  for (int64_t b = 0; b < image.dim(0); ++b) {
    const Tensor one = image.select(0, b);
    for (int64_t r = 0; r < count; r += step) {
      const int64_t n = std::min(step, count - r);
      if (!copies) {
        f(b, r, n, one.slice(0, r, n).view({n * read.positions, taps}));
        continue;
      }
      const Tensor to = Tensor::empty({n * read.positions, taps}, image.dtype(), image.device());
      const int64_t bytes = read.channels * int64_t(item_size(image.dtype()));
      dispatch_unit(uint64_t(bytes), [&]<class U>() {
        ConvReads units = read;
        units.channels = bytes / int64_t(sizeof(U));
        launch_each(name, n * line_of(units), unfold_kernel<U>, reinterpret_cast<U*>(to.raw()),
                    reinterpret_cast<const U*>(one.raw()), units, r, n * line_of(units));
      });
      f(b, r, n, to);
    }
  }
}

}  // namespace

void conv2d(Tensor y, Tensor x, Tensor w, Tensor b, Convolution conf) {
  const OnDevice lengths(conf.lengths, x.device());
  const ConvSizes s(x, w, y, conf, lengths.data<int64_t>());
  const Tensor weights = transposed_weights(w, false).view({-1, s.O});
  each_product("conv2d", x, reads_of_image(s), s.rows,
               [&](int64_t sequence, int64_t r, int64_t n, const Tensor& read) {
                 const Tensor to = y.select(0, sequence).slice(0, s.before + r, n);
                 matmul(to.view({n * s.columns, s.O}), read, weights, false, false, 1, 0);
               });
  dispatch_float(y.dtype(), [&]<class Y>() {
    launch_each("conv2d", y.numel(), finish_kernel<Y>, y.data<Y>(), data_or_null<Y>(b), s,
                y.numel());
  });
}

void conv2d_backward(Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w, Tensor y,
                     Convolution conf) {
  const OnDevice lengths(conf.lengths, x.device());
  const ConvSizes s(x, w, dy, conf, lengths.data<int64_t>());
  const char* name = "conv2d_backward";
  Tensor g = Tensor::empty({s.B, s.rows, s.columns, s.O}, dy.dtype(), dy.device());
  dispatch_float(dy.dtype(), [&]<class Y>() {
    launch_each(name, g.numel(), gradient_kernel<Y>, g.data<Y>(), dy.data<Y>(),
                s.relu ? y.data<Y>() : nullptr, s, g.numel());
  });
  if (db.defined()) sum_rows(db, g.view({s.B * s.rows * s.columns, s.O}));
  g = g.to(w.dtype());  // rounded with the weights
  if (dx.defined()) {
    const Tensor weights = transposed_weights(w, true).view({-1, s.C});
    each_product(name, g, reads_of_gradient(s), s.rows_in,
                 [&](int64_t sequence, int64_t r, int64_t n, const Tensor& read) {
                   const Tensor to = dx.select(0, sequence).slice(0, r, n);
                   matmul(to.view({n * s.columns_in, s.C}), read, weights, false, false, 1, 0);
                 });
  }
  if (!dw.defined()) return;
  const Tensor sums = Tensor::zeros({s.kT, s.kW, s.C, s.O}, dw.dtype(), dw.device());
  each_product(
      name, x, reads_of_image(s), s.rows,
      [&](int64_t sequence, int64_t r, int64_t n, const Tensor& read) {
        const Tensor of = g.select(0, sequence).slice(0, r, n);
        matmul(sums.view({-1, s.O}), read, of.view({n * s.columns, s.O}), true, false, 1, 1);
      });
  accumulate(dw, sums.transpose(2, 3).transpose(1, 3).transpose(0, 2));
}

}  // namespace brine::cuda
