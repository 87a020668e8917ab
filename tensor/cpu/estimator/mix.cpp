// From sparse attention to the block's output: the gates of both paths.
#include <algorithm>

#include "tensor/base/math.h"
#include "tensor/cpu/core/pieces.h"
#include "tensor/kernels/estimator.h"
#include "tensor/mask/csr.h"

namespace brine::BRINE_CPU {
namespace {

constexpr int64_t kTokens = 64;  // per piece of work

}  // namespace

void mix_outputs(Tensor y, Tensor c, Tensor average, Tensor gates, Visibility visible) {
  int64_t B = c.dim(0), H = c.dim(1), T = c.dim(2), d = c.dim(3);
  const int64_t group = H / average.dim(1);  // heads that share an average
  RowWidths widths(visible, T);
  dispatch_float(c.dtype(), [&]<class R>() {
    const R *xc = c.data<R>(), *xa = average.data<R>(), *xs = gates.data<R>();
    R* out = y.data<R>();
    parallel_for(B * T, kTokens, [&](int64_t r0, int64_t r1) {
      for (int64_t r = r0; r < r1; ++r) {
        int64_t b = r / T, t = r % T;
        if (t >= widths.length(b)) {
          std::fill_n(out + r * H * d, H * d, R(0));
          continue;
        }
        for (int64_t h = 0; h < H; ++h) {
          int64_t i = (b * H + h) * T + t;
          R prob = math::sigmoid(xs[2 * i]), mix = math::sigmoid(xs[2 * i + 1]);
          R keep = mix * prob, rest = 1 - mix;
          R* row = out + (r * H + h) * d;
          const R *a = xc + i * d, *m = xa + ((b * H + h) / group * T + t) * d;
#pragma omp simd
          for (int64_t j = 0; j < d; ++j) row[j] = keep * a[j] + rest * m[j];
        }
      }
    });
  });
}

namespace {

// The tensors of the backward pass of mix_outputs.
template <class R>
struct MixGradients {
  R *dc, *daverage, *dgates;
  const R *dy, *c, *average, *gates;
};

// Row i of c, whose average is row `of`: dc and dgates, and its share is added to daverage.
template <class R>
void mix_row(const MixGradients<R>& g, const R* up, int64_t i, int64_t of, int64_t d) {
  R *out_c = g.dc + i * d, *out_a = g.daverage + of * d, *gs = g.dgates + 2 * i;
  const R *a = g.c + i * d, *m = g.average + of * d;
  const R prob = math::sigmoid(g.gates[2 * i]), mix = math::sigmoid(g.gates[2 * i + 1]);
  R keep = mix * prob, rest = 1 - mix, along_c = 0, along_a = 0;
#pragma omp simd reduction(+ : along_c, along_a)
  for (int64_t j = 0; j < d; ++j) {
    out_c[j] = keep * up[j];
    out_a[j] += rest * up[j];
    along_c += up[j] * a[j];
    along_a += up[j] * m[j];
  }
  gs[0] = mix * along_c * prob * (1 - prob);
  gs[1] = (prob * along_c - along_a) * mix * (1 - mix);
}

}  // namespace

void mix_outputs_backward(Tensor dc, Tensor daverage, Tensor dgates, Tensor dy, Tensor c,
                          Tensor average, Tensor gates, Visibility visible) {
  int64_t H = c.dim(1), T = c.dim(2), d = c.dim(3), G = average.dim(1), group = H / G;
  RowWidths widths(visible, T);
  dispatch_float(c.dtype(), [&]<class R>() {
    const MixGradients<R> g{dc.data<R>(), daverage.data<R>(), dgates.data<R>(), dy.data<R>(),
                            c.data<R>(),  average.data<R>(),  gates.data<R>()};
    parallel_for(c.dim(0) * G * T, kTokens, [&](int64_t i0, int64_t i1) {
      for (int64_t of = i0; of < i1; ++of) {
        const int64_t bg = of / T, b = bg / G, t = of % T;
        std::fill_n(g.daverage + of * d, d, R(0));
        for (int64_t bh = bg * group; bh < (bg + 1) * group; ++bh) {
          const int64_t i = bh * T + t;
          if (t < widths.length(b)) {
            mix_row(g, g.dy + ((b * T + t) * H + bh % H) * d, i, of, d);
          } else {
            std::fill_n(g.dc + i * d, d, R(0));
            g.dgates[2 * i] = g.dgates[2 * i + 1] = 0;
          }
        }
      }
    });
  });
}

}  // namespace brine::BRINE_CPU
