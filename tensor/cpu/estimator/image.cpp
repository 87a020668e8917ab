// Conversion between heads and images, the layouts of SEA's convolutions, and the softmax over
// columns.
#include <limits>

#include "tensor/base/parallel.h"
#include "tensor/cpu/core/pieces.h"
#include "tensor/cpu/core/softmax_row.h"
#include "tensor/kernels/estimator.h"
#include "tensor/mask/csr.h"

namespace brine::BRINE_CPU {
namespace {

// Sizes of image_from_heads: heads [B, H, T, c W], image [B, height, W, H c], whose
// rows halo..halo + T are the queries'.
struct Sizes {
  int64_t B, H, tokens, height, W, c, halo;

  Sizes(const Tensor& heads, const Tensor& image, int64_t halo)
      : B(heads.dim(0)),
        H(heads.dim(1)),
        tokens(heads.dim(2)),
        height(image.dim(1)),
        W(image.dim(2)),
        c(image.dim(3) / H),
        halo(halo) {}

  int64_t features() const { return c * W; }
  int64_t row() const { return W * H * c; }  // elements of a row of the image
  // The start of head h of (sequence, query) in `heads`.
  int64_t head(int64_t b, int64_t t, int64_t h) const {
    return ((b * H + h) * tokens + t) * features();
  }
};

// Calls f(row of the image, sequence, query) for every row of the image; the query is
// outside [0, T) in the halo.
template <class F>
void each_image_row(const Sizes& s, F f) {
  parallel_for(s.B * s.height, std::max<int64_t>(1, kGrain / s.row()),
               [&](int64_t begin, int64_t end) {
                 for (int64_t r = begin; r < end; ++r) f(r, r / s.height, r % s.height - s.halo);
               });
}

// The same numbers as heads [B, H, T, K] and as an image [B, T, K, H].
struct Heads {
  int64_t B, H, tokens, K;

  explicit Heads(const Tensor& y) : B(y.dim(0)), H(y.dim(1)), tokens(y.dim(2)), K(y.dim(3)) {}

  // f(a row of heads, its first number in the image); the next is H further.
  template <class F>
  void each(F f) const {
    parallel_for(B * tokens, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, H * K)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t r = begin; r < end; ++r) {
                     for (int64_t h = 0; h < H; ++h) {
                       f(((r / tokens * H + h) * tokens + r % tokens) * K, r * K * H + h);
                     }
                   }
                 });
  }
};

}  // namespace

void image_from_heads(Tensor image, Tensor x, int64_t halo, Tensor lengths) {
  dispatch_float(x.dtype(), [&]<class T>() {
    const Sizes s(x, image, halo);
    const RowWidths widths({.causal = false, .lengths = lengths}, s.tokens);
    const T* from = x.data<T>();
    T* to = image.data<T>();
    each_image_row(s, [&](int64_t r, int64_t b, int64_t t) {
      T* row = to + r * s.row();
      if (t < 0 || t >= widths.length(b)) return std::fill(row, row + s.row(), T(0));
      const int64_t channels = s.H * s.c;
      for (int64_t h = 0; h < s.H; ++h) {
        const T* in = from + s.head(b, t, h);
        for (int64_t i = 0; i < s.c; ++i, in += s.W) {
          T* out = row + h * s.c + i;
          for (int64_t w = 0; w < s.W; ++w) out[w * channels] = in[w];
        }
      }
    });
  });
}

void image_from_heads_backward(Tensor dx, Tensor dimage, int64_t halo, Tensor lengths) {
  dispatch_float(dx.dtype(), [&]<class T>() {
    const Sizes s(dx, dimage, halo);
    const RowWidths widths({.causal = false, .lengths = lengths}, s.tokens);
    const T* from = dimage.data<T>();
    T* to = dx.data<T>();
    each_image_row(s, [&](int64_t r, int64_t b, int64_t t) {
      if (t < 0 || t >= s.tokens) return;
      const bool visible = t < widths.length(b);
      const int64_t channels = s.H * s.c;
      for (int64_t h = 0; h < s.H; ++h) {
        T* out = to + s.head(b, t, h);
        if (!visible) {
          std::fill(out, out + s.features(), T(0));
          continue;
        }
        for (int64_t i = 0; i < s.c; ++i, out += s.W) {
          const T* in = from + r * s.row() + h * s.c + i;
          for (int64_t w = 0; w < s.W; ++w) out[w] = in[w * channels];
        }
      }
    });
  });
}

void heads_from_image(Tensor y, Tensor image) {
  dispatch_float(y.dtype(), [&]<class T>() {
    const Heads s(y);
    const T* from = image.data<T>();
    T* to = y.data<T>();
    s.each([&](int64_t head, int64_t pixel) {
      for (int64_t c = 0; c < s.K; ++c) to[head + c] = from[pixel + c * s.H];
    });
  });
}

void heads_from_image_backward(Tensor dimage, Tensor dy) {
  dispatch_float(dy.dtype(), [&]<class T>() {
    const Heads s(dy);
    const T* from = dy.data<T>();
    T* to = dimage.data<T>();
    s.each([&](int64_t head, int64_t pixel) {
      for (int64_t c = 0; c < s.K; ++c) to[pixel + c * s.H] = from[head + c];
    });
  });
}

void column_softmax(Tensor y, Tensor scores, Visibility visible) {
  dispatch_float(y.dtype(), [&]<class T>() {
    const int64_t H = y.dim(1), tokens = y.dim(2), K = y.dim(3);
    const RowWidths widths(visible, tokens);
    const T* from = scores.data<T>();
    T* to = y.data<T>();
    parallel_for(y.rows(), std::max<int64_t>(1, kGrain / K), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* x = from + r * K;
        T* out = to + r * K;
        const int64_t w = widths(r / (H * tokens), r % tokens);
        if (w >= K) {
          softmax_row(out, x, K);
          continue;
        }
        // Columns without keys get -inf: their exp is 0.
        for (int64_t c = 0; c < K; ++c) {
          const bool owns = math::column_begin(c + 1, w, K) > math::column_begin(c, w, K);
          out[c] = owns ? x[c] : -std::numeric_limits<T>::infinity();
        }
        if (w == 0) {
          std::fill(out, out + K, T(0));
          continue;
        }
        softmax_in_place(out, K);
      }
    });
  });
}

void resampled_identity(Tensor y, Tensor lengths, bool nearest) {
  const int64_t T = y.dim(1), d = y.dim(2);
  const RowWidths widths({.causal = false, .lengths = lengths}, T);
  dispatch_float(y.dtype(), [&]<class F>() {
    F* out = y.data<F>();
    parallel_for(y.dim(0) * T, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, d)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t r = begin; r < end; ++r) {
                     const int64_t L = widths.valid(r / T), p = r % T;
                     for (int64_t c = 0; c < d; ++c) {
                       out[r * d + c] =
                           p < L ? F(math::resampled_identity(p, c, L, d, nearest)) : F(0);
                     }
                   }
                 });
  });
}

}  // namespace brine::BRINE_CPU
