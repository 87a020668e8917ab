// Convolution as products: the columns that each position reads are written side by side, and
// multiplied by the weights of one row of the kernel after the other. A piece of rows stays in L2.
// The pieces, and so the bits, depend on sizes alone.
#include <algorithm>
#include <vector>

#include "tensor/cpu/core/gemm_f64.h"
#include "tensor/cpu/core/pieces.h"
#include "tensor/kernels/conv.h"
#include "tensor/kernels/conv_reads.h"

namespace brine::BRINE_CPU {
namespace {

constexpr int64_t kPiece = 1 << 16;  // numbers of a piece, at least two rows
constexpr int64_t kRuns = 32;        // of pieces, at most: sums of the gradient of the weights

int64_t line_of(const ConvReads& read) { return read.positions * read.kW * read.channels; }
int64_t rows_of_piece(const ConvReads& read) {
  return std::max<int64_t>(2, kPiece / std::max<int64_t>(1, line_of(read)));
}

// to [n, positions, kW, channels] = what the positions read of rows [first, first + n).
template <class T>
void unfold(T* to, const T* image, const ConvReads& read, int64_t first, int64_t n) {
  const int64_t C = read.channels;
  for (int64_t r = first; r < first + n; ++r) {
    const T* row = image + r * read.columns * C;
    for (int64_t p = 0; p < read.positions; ++p) {
      const int64_t column = read.column(p, 0);
      if (column >= 0 && column + read.kW <= read.columns) {
        to = std::copy_n(row + column * C, read.kW * C, to);
        continue;
      }
      for (int64_t k = 0; k < read.kW; ++k) {
        const int64_t at = read.column(p, k);
        to = at >= 0 ? std::copy_n(row + at * C, C, to) : std::fill_n(to, C, T(0));
      }
    }
  }
}

// What rows [first, first + count) read, unfolded: rows [low, high) of the image, none if low >=
// high.
template <class T>
struct Unfolded {
  int64_t low, high = 0;
  const T* data = nullptr;

  Unfolded(const T* image, const ConvReads& read, int64_t first, int64_t count) : low(read.rows) {
    for (int64_t i = 0; i < count * read.kT; ++i) {
      const int64_t row = read.row(first + i / read.kT, i % read.kT);
      if (row >= 0) low = std::min(low, row);
      high = std::max(high, row + 1);
    }
    if (low >= high) return;
    data = image + low * line_of(read);
    if (read.kW == 1) return;
    thread_local std::vector<T> memory;
    memory.resize(size_t((high - low) * line_of(read)));
    unfold(memory.data(), image, read, low, high - low);
    data = memory.data();
  }
};

// Calls f(t, r, n, a) for each row t of the kernel and each range [r, r + n) of [first, first +
// count) whose rows read neighbours: a [n positions, kW channels].
template <class T, class F>
void each_product(const T* image, const ConvReads& read, int64_t first, int64_t count, F&& f) {
  const Unfolded<T> rows(image, read, first, count);
  for (int64_t t = 0; rows.data && t < read.kT; ++t) {
    for (int64_t r = first, n = 1; r < first + count; r += n, n = 1) {
      const int64_t row = read.row(r, t);
      if (row < 0) continue;
      while (r + n < first + count && read.row(r + n, t) == row + n) ++n;
      f(t, r, n, rows.data + (row - rows.low) * line_of(read));
    }
  }
}

// Adds to rows [first, first + count) of out [rows, positions, N] what they read times weights
// [kW channels, kT, N]. sgemm is slow with few columns, 52 Gflop/s with 12 and 68 with 36 and their
// sums on a core of a Zen 4 (limit 115): rows of the kernel that read the same rows go together.
template <class T, class Y>
void add_products(Y* out, const T* image, const ConvReads& read, const T* weights, int64_t N,
                  int64_t first, int64_t count) {
  const int64_t K = read.kW * read.channels, columns = read.kT * N, line = read.positions * N;
  onednn::Gemm product{.N = N, .K = K, .lda = K, .ldb = columns, .ldc = N, .beta = 1};
  if (read.up > 1 || count <= read.kT) {
    each_product(image, read, first, count, [&](int64_t t, int64_t r, int64_t n, const T* a) {
      product.M = n * read.positions;
      onednn::gemm(product, a, weights + t * N, out + r * line);
    });
    return;
  }
  const Unfolded<T> rows(image, read, first, count);
  if (!rows.data) return;
  thread_local std::vector<Y> products;
  product.M = (rows.high - rows.low) * read.positions;
  products.resize(size_t(product.M * columns));
  product.N = product.ldc = columns;
  product.beta = 0;
  onednn::gemm(product, rows.data, weights, products.data());
  for (int64_t i = 0; i < count * read.kT; ++i) {
    const int64_t r = first + i / read.kT, t = i % read.kT, row = read.row(r, t);
    const Y* from = products.data() + ((row - rows.low) * read.positions * read.kT + t) * N;
    for (int64_t p = 0; row >= 0 && p < read.positions; ++p) {
      for (int64_t n = 0; n < N; ++n) out[r * line + p * N + n] += from[p * columns + n];
    }
  }
}

// [kW channels, kT, N] of the weights as a product of images reads them.
Tensor weights_of(const Tensor& w, bool gradient, const ConvReads& read) {
  const Tensor transposed = transposed_weights(w, gradient);
  return transposed.view({read.kT, read.kW * read.channels, -1}).transpose(0, 1).contiguous();
}

// x and w have type T, the others type Y; also below.
template <class T, class Y = T>
void forward(Tensor y, Tensor x, Tensor w, Tensor b, const ConvSizes& s) {
  const ConvReads read = reads_of_image(s);
  const int64_t step = rows_of_piece(read), pieces = (s.rows + step - 1) / step;
  const int64_t line = s.columns * s.O;
  const Tensor weights = weights_of(w, false, read);
  const Y* bias = b.defined() ? b.data<Y>() : nullptr;
  parallel_for(s.B * pieces, 1, [&](int64_t piece, int64_t) {
    const int64_t sequence = piece / pieces, first = piece % pieces * step;
    const int64_t last = std::min(first + step, s.rows);
    const int64_t live = std::clamp(s.live(sequence), first, last);
    Y* out = y.data<Y>() + (sequence * s.rows_out + s.before) * line;
    std::fill(out + first * line, out + last * line, Y(0));
    if (first == 0) std::fill(out - s.before * line, out, Y(0));
    if (last == s.rows) std::fill(out + last * line, out + (s.rows_out - s.before) * line, Y(0));
    for (int64_t i = first * s.columns; bias && i < live * s.columns; ++i) {
      std::copy_n(bias, s.O, out + i * s.O);
    }
    const T* image = x.data<T>() + sequence * s.rows_in * s.columns_in * s.C;
    add_products(out, image, read, weights.data<T>(), s.O, first, live - first);
    for (int64_t i = first * line; s.relu && i < live * line; ++i)
      out[i] = out[i] > 0 ? out[i] : Y(0);
  });
}

// dy of the sums [B, rows, columns, O]: 0 in rows of padding, and where ReLU cut.
Tensor gradient_of_sums(const Tensor& dy, const Tensor& y, const ConvSizes& s) {
  if (!s.relu && !s.lengths && s.rows_out == s.rows) return dy;
  Tensor g = Tensor::empty({s.B, s.rows, s.columns, s.O}, dy.dtype());
  const int64_t line = s.columns * s.O;
  dispatch_float(dy.dtype(), [&]<class Y>() {
    each_row(s.B * s.rows, line, [&](int64_t row) {
      const int64_t b = row / s.rows, r = row % s.rows, at = (b * s.rows_out + s.before + r) * line;
      const Y *from = dy.data<Y>() + at, *kept = s.relu ? y.data<Y>() + at : nullptr;
      Y* to = g.data<Y>() + row * line;
      if (r >= s.live(b)) {
        std::fill_n(to, line, Y(0));
      } else if (!kept) {
        std::copy_n(from, line, to);
      } else {
        for (int64_t i = 0; i < line; ++i) to[i] = kept[i] > 0 ? from[i] : Y(0);
      }
    });
  });
  return g;
}

template <class T, class Y = T>
void data_gradient(Tensor dx, Tensor g, Tensor w, const ConvSizes& s) {
  const ConvReads read = reads_of_gradient(s);
  const int64_t step = rows_of_piece(read), pieces = (s.rows_in + step - 1) / step;
  const int64_t line = s.columns_in * s.C;
  const Tensor weights = weights_of(w, true, read);
  parallel_for(s.B * pieces, 1, [&](int64_t piece, int64_t) {
    const int64_t sequence = piece / pieces, first = piece % pieces * step;
    const int64_t last = std::min(first + step, s.rows_in);
    Y* out = dx.data<Y>() + sequence * s.rows_in * line;
    std::fill(out + first * line, out + last * line, Y(0));
    const T* image = g.data<T>() + sequence * s.rows * s.columns * s.O;
    add_products(out, image, read, weights.data<T>(), s.C, first, last - first);
  });
}

// Adds to dw: runs of pieces have sums of their own, which are added in order.
template <class T>
void weight_gradient(Tensor dw, Tensor g, Tensor x, const ConvSizes& s) {
  const ConvReads read = reads_of_image(s);
  const int64_t step = rows_of_piece(read), pieces = (s.rows + step - 1) / step;
  const int64_t all = s.B * pieces, length = std::max<int64_t>(1, (all + kRuns - 1) / kRuns);
  const int64_t runs = (all + length - 1) / length, K = s.kW * s.C;
  Tensor sums = Tensor::zeros({runs, s.O * s.kT * K}, g.dtype());
  parallel_for(runs, 1, [&](int64_t run, int64_t) {
    for (int64_t i = run * length; i < std::min(all, (run + 1) * length); ++i) {
      const int64_t sequence = i / pieces, first = i % pieces * step;
      const int64_t count = std::min(step, s.live(sequence) - first);
      const T* image = x.data<T>() + sequence * s.rows_in * s.columns_in * s.C;
      const T* dy = g.data<T>() + sequence * s.rows * s.columns * s.O;
      each_product(image, read, first, count, [&](int64_t t, int64_t r, int64_t n, const T* a) {
        onednn::gemm({.M = s.O,
                      .N = K,
                      .K = n * s.columns,
                      .ta = true,
                      .lda = s.O,
                      .ldb = K,
                      .ldc = K,
                      .beta = 1},
                     dy + r * s.columns * s.O, a, sums.data<T>() + (run * s.kT + t) * s.O * K);
      });
    }
  });
  Tensor total = Tensor::zeros({s.O * s.kT * K}, g.dtype());
  sum_rows(total, sums);
  // [kT, O, kW, C] to [O, C, kT, kW]
  accumulate(dw,
             total.view({s.kT, s.O, s.kW, s.C}).transpose(0, 1).transpose(1, 3).transpose(2, 3));
}

// Whether a type has 16 bits and the CPU does not multiply it.
bool is_emulated(Dtype t) {
  return t == Dtype::f16 || (t == Dtype::bf16 && !onednn::has_bf16_gemm());
}

// bf16 if the CPU multiplies it, else the same values in f32.
Tensor usable(const Tensor& t) { return is_emulated(t.dtype()) ? t.to(Dtype::f32) : t; }

const int64_t* lengths_of(const Convolution& conf) {
  return conf.lengths.defined() ? conf.lengths.data<int64_t>() : nullptr;
}

}  // namespace

void conv2d(Tensor y, Tensor x, Tensor w, Tensor b, Convolution conf) {
  x = usable(x);
  w = usable(w);
  const ConvSizes s(x, w, y, conf, lengths_of(conf));
  if (x.dtype() == Dtype::bf16) return forward<bf16, float>(y, x, w, b, s);
  dispatch_float(x.dtype(), [&]<class T>() { forward<T>(y, x, w, b, s); });
}

void conv2d_backward(Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w, Tensor y,
                     Convolution conf) {
  const ConvSizes s(x, w, dy, conf, lengths_of(conf));
  const Tensor g = gradient_of_sums(dy, y, s);
  if (dx.defined()) {
    // The gradient is rounded with the weights.
    const Tensor rounded = usable(g.to(w.dtype())), weights = usable(w);
    if (weights.dtype() == Dtype::bf16) {
      data_gradient<bf16, float>(dx, rounded, weights, s);
    } else {
      dispatch_float(weights.dtype(),
                     [&]<class T>() { data_gradient<T>(dx, rounded, weights, s); });
    }
  }
  if (db.defined()) sum_rows(db, g.view({s.B * s.rows * s.columns, s.O}));
  if (!dw.defined()) return;
  if (item_size(x.dtype()) == 2) x = x.to(Dtype::f32);
  dispatch_float(x.dtype(), [&]<class T>() { weight_gradient<T>(dw, g, x, s); });
}

}  // namespace brine::BRINE_CPU
