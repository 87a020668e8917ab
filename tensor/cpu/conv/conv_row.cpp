// A causal convolution one row at a time, from a window of the last rows.
#include <algorithm>
#include <cstring>

#include "tensor/base/parallel.h"
#include "tensor/cpu/core/vectors.h"
#include "tensor/kernels/conv.h"

namespace brine::BRINE_CPU {
namespace {

template <class T>
struct RowConvolution {
  int64_t C, O, padded;  // channels; outputs as packed
  int64_t kT, kW, dilation;
  int64_t row;  // numbers from one row of the window to the next
  const T *packed, *bias;
  bool relu;

  // Outputs [o, o + N vectors) of P columns, from the window's column x on.
  template <int P, int N>
  void tile(T* y, const T* x, int64_t o) const {
    constexpr int W = kWidth<T>;
    Vector<T> sum[P][N] = {};
    const T* w = packed + o;
    for (int64_t t = 0; t < kT; ++t) {
      for (int64_t column = 0; column < kW; ++column) {
        const T* from = x + t * dilation * row + column * dilation * C;
        for (int64_t c = 0; c < C; ++c, w += padded) {
          Vector<T> weight[N];
#pragma GCC unroll 4
          for (int n = 0; n < N; ++n) weight[n] = load(w + n * W);
#pragma GCC unroll 8
          for (int p = 0; p < P; ++p) {
            const T in = from[p * C + c];
#pragma GCC unroll 4
            for (int n = 0; n < N; ++n) sum[p][n] += in * weight[n];
          }
        }
      }
    }
    T all[P][N * W];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) store(all[p] + n * W, sum[p][n]);
    }
    for (int p = 0; p < P; ++p) {
      for (int64_t i = o; i < std::min(O, o + N * W); ++i) {
        const T value = bias ? all[p][i - o] + bias[i] : all[p][i - o];
        y[p * O + i] = relu && !(value > 0) ? T(0) : value;
      }
    }
  }

  template <int P>
  void columns(T* y, const T* x) const {
    constexpr int W = kWidth<T>;
    int64_t o = 0;
    for (; o + 3 * W <= padded; o += 3 * W) tile<P, 3>(y, x, o);
    for (; o < padded && o < O; o += W) tile<P, 1>(y, x, o);
  }
};

constexpr int kColumns = 8;           // of a tile
constexpr int64_t kShared = 1 << 17;  // multiply-adds that justify a second thread

}  // namespace

void push_row(Tensor window, Tensor row, int64_t margin) {
  const int64_t rows = window.dim(1), W = row.dim(1), C = row.dim(2), size = window.dim(2) * C;
  dispatch_float(row.dtype(), [&]<class T>() {
    for (int64_t b = 0; b < row.dim(0); ++b) {
      T* to = window.data<T>() + b * window.stride(0);
      std::memmove(to, to + size, size_t((rows - 1) * size) * sizeof(T));
      std::copy_n(row.data<T>() + b * W * C, W * C, to + (rows - 1) * size + margin * C);
    }
  });
}

void pack_row_weights(Tensor packed, Tensor w) {
  const int64_t O = w.dim(0), C = w.dim(1), taps = w.dim(2) * w.dim(3), padded = packed.dim(-1);
  dispatch_float(w.dtype(), [&]<class T>() {
    T* to = packed.data<T>();
    std::fill_n(to, packed.numel(), T(0));
    for (int64_t o = 0; o < O; ++o) {
      for (int64_t c = 0; c < C; ++c) {
        for (int64_t tap = 0; tap < taps; ++tap) {
          to[(tap * C + c) * padded + o] = w.data<T>()[(o * C + c) * taps + tap];
        }
      }
    }
  });
}

void convolve_row(Tensor y, Tensor window, Tensor packed, Tensor b, int64_t dilation, bool relu) {
  const int64_t B = y.dim(0), W = y.dim(1), O = y.dim(2);
  dispatch_float(y.dtype(), [&]<class T>() {
    const RowConvolution<T> conv{.C = window.dim(3),
                                 .O = O,
                                 .padded = packed.dim(3),
                                 .kT = packed.dim(0),
                                 .kW = packed.dim(1),
                                 .dilation = dilation,
                                 .row = window.dim(2) * window.dim(3),
                                 .packed = packed.data<T>(),
                                 .bias = b.defined() ? b.data<T>() : nullptr,
                                 .relu = relu};
    const int64_t tiles = (W + kColumns - 1) / kColumns;
    const int64_t work = B * W * O * conv.C * conv.kT * conv.kW;
    parallel_for(B * tiles, work < kShared ? B * tiles : 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t s = i / tiles, first = i % tiles * kColumns;
        const T* x = window.data<T>() + s * window.stride(0) + first * conv.C;
        T* out = y.data<T>() + (s * W + first) * O;
        int64_t rest = std::min<int64_t>(kColumns, W - first);
        if (rest == kColumns) {
          conv.template columns<kColumns>(out, x);
          continue;
        }
        for (; rest > 0; --rest, x += conv.C, out += O) conv.template columns<1>(out, x);
      }
    });
  });
}

}  // namespace brine::BRINE_CPU
