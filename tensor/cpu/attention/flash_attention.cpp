// Tiled softmax attention: each tile of queries iterates over the keys with a running maximum and
// sum (online softmax: Milakov and Gimelshein 2018; tiled: Dao et al. 2022), so no map is stored.
//
// The queries of a tile are the lanes of vectors: scores are stored as [key, query]. The softmax
// then needs no sum across lanes, and both products broadcast elements of K and V directly from
// memory, unpacked; only the queries and the result are transposed, once per tile.
#include "tensor/kernels/attention.h"

#include <limits>

#include "tensor/cpu/attention/flash_pairs.h"
#include "tensor/cpu/attention/flash_softmax.h"
#include "tensor/cpu/attention/flash_tile.h"
#include "tensor/cpu/core/pieces.h"
#include "tensor/cpu/core/stream.h"
#include "tensor/csr.h"

namespace brine::BRINE_CPU {
namespace {

constexpr int64_t kQueries = kFlashQueries, kKeys = kFlashKeys;

// The queries [first, first + rows) of one head against the first `visible` keys.
template <class T>
struct Tile {
  const T *q, *k, *v;  // of the head: [T, d]
  int64_t d, first, rows, visible;
  bool causal;
};

// Writes rows of y, `step` apart, and of lse.
template <class T>
void attend(const Tile<T>& at, T* y, int64_t step, T* lse, T scale) {
  constexpr T kNothing = -std::numeric_limits<T>::infinity();
  const int64_t d = at.d, lanes = whole_vectors<T>(at.rows);
  thread_local Scratch<T> scratch;
  scratch.reserve((2 * d + kKeys) * kQueries, 3);
  T *q = scratch.take(d * kQueries), *out = scratch.take(d * kQueries);
  T* s = scratch.take(kKeys * kQueries);
  const int64_t start = std::min(kKeys, at.visible);
  fetch(at.k, start * d);
  fetch(at.v, start * d);
  turn<true>(Lanes<T>{q, kQueries}, Lanes<const T>{at.q + at.first * d, d}, at.rows, d,
             [](int64_t) { return T(1); });
  Running<T> run;
  std::fill_n(run.most, lanes, std::numeric_limits<T>::lowest());
  std::fill_n(run.sum, lanes, T(0));
  for (int64_t j = 0; j < at.visible; j += kKeys) {
    const int64_t keys = std::min(kKeys, at.visible - j);
    tile_product(keys, lanes, d, Broadcast<T, false>{at.k + j * d, d}, Lanes<const T>{q, kQueries},
                 Lanes<T>{s, kQueries});
    for (int64_t n = std::max<int64_t>(0, at.first - j + 1); at.causal && n < keys; ++n) {
      std::fill_n(s + n * kQueries, std::min(j + n - at.first, lanes), kNothing);
    }
    auto ahead = [&](int64_t n) __attribute__((always_inline)) {
      fetch(at.v + (j + n) * d, d);
      if (j + keys + n < at.visible) fetch(at.k + (j + keys + n) * d, d);
    };
    lanes == kQueries ? soften<kQueries>(s, keys, lanes, scale, run, ahead)
                      : soften<0>(s, keys, lanes, scale, run, ahead);
    tile_product(d, lanes, keys, Broadcast<T, true>{at.v + j * d, d}, Lanes<const T>{s, kQueries},
                 Lanes<T>{out, kQueries}, {.factors = j ? run.rescale : nullptr});
  }
  turn<false>(Lanes<T>{y, step}, Lanes<const T>{out, kQueries}, d, at.rows,
              [&](int64_t m) { return 1 / run.sum[m]; });
  for (int64_t m = 0; m < at.rows; ++m) {
    lse[m] = run.most[m] * scale + math::log(run.sum[m]);
  }
}

}  // namespace

void flash_attention(Tensor y, Tensor lse, Tensor q, Tensor k, Tensor v, Visibility visible,
                     double scale) {
  if (q.dtype() == Dtype::bf16 && takes_pairs(q.dim(3))) {
    return flash_attention_pairs(y, lse, q, k, v, visible, scale);
  }
  if (q.dtype() == Dtype::bf16 || q.dtype() == Dtype::f16) {
    return flash_attention(y, lse, q.to(Dtype::f32), k.to(Dtype::f32), v.to(Dtype::f32), visible,
                           scale);
  }
  const int64_t B = q.dim(0), H = q.dim(1), T = q.dim(2), d = q.dim(3);
  const int64_t group = H / k.dim(1);  // heads that share keys and values
  const int64_t tiles = (T + kQueries - 1) / kQueries;
  const RowWidths widths(visible, T);
  dispatch_float(q.dtype(), [&]<class R>() {
    const R *xq = q.data<R>(), *xk = k.data<R>(), *xv = v.data<R>();
    R *out = y.data<R>(), *sums = lse.data<R>();
    for_pieces(B * H * tiles, B * H * T * T * d, [&](int64_t i) {
      // The long tiles of a causal mask come first, so that threads finish at similar times.
      const int64_t bh = i % (B * H), b = bh / H, h = bh % H;
      const int64_t first = (tiles - 1 - i / (B * H)) * kQueries,
                    end = std::min(T, first + kQueries);
      const int64_t rows = std::clamp<int64_t>(widths.valid(b) - first, 0, end - first);
      R* to = out + (b * T + first) * H * d + h * d;
      R* own = sums + bh * T + first;
      if (rows > 0) {
        attend<R>({.q = xq + bh * T * d,
                   .k = xk + bh / group * T * d,
                   .v = xv + bh / group * T * d,
                   .d = d,
                   .first = first,
                   .rows = rows,
                   .visible = widths(b, first + rows - 1),
                   .causal = visible.causal},
                  to, H * d, own, R(scale));
      }
      for (int64_t m = rows; m < end - first; ++m) {
        std::fill_n(to + m * H * d, d, R(0));
        own[m] = 0;
      }
    });
  });
}

}  // namespace brine::BRINE_CPU
