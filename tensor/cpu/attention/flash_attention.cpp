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
#include "tensor/cpu/attention/flash_tasks.h"
#include "tensor/cpu/attention/flash_tile.h"
#include "tensor/cpu/core/stream.h"

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
  transpose<true>(Lanes<T>{q, kQueries}, Lanes<const T>{at.q + at.first * d, d}, at.rows, d,
                  [](int64_t) { return T(1); });
  Running<T> run;
  std::fill_n(run.maximum, lanes, std::numeric_limits<T>::lowest());
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
    lanes == kQueries ? soften<kQueries>(s, kQueries, keys, lanes, scale, run, ahead)
                      : soften<0>(s, kQueries, keys, lanes, scale, run, ahead);
    tile_product(d, lanes, keys, Broadcast<T, true>{at.v + j * d, d}, Lanes<const T>{s, kQueries},
                 Lanes<T>{out, kQueries}, {.factors = j ? run.rescale : nullptr});
  }
  transpose<false>(Lanes<T>{y, step}, Lanes<const T>{out, kQueries}, d, at.rows,
                   [&](int64_t m) { return 1 / run.sum[m]; });
  for (int64_t m = 0; m < at.rows; ++m) {
    lse[m] = run.maximum[m] * scale + math::log(run.sum[m]);
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
  const int64_t group = q.dim(1) / k.dim(1);  // heads that share keys and values
  const int64_t d = q.dim(3), head = q.dim(2) * d;
  dispatch_float(q.dtype(), [&]<class R>() {
    const R *xq = q.data<R>(), *xk = k.data<R>(), *xv = v.data<R>();
    each_tile_of_queries<R>(y, lse, RowWidths(visible, q.dim(2)), kQueries,
                            [&](const QueryTile& tile, R* to, int64_t step, R* sums) {
                              attend<R>({.q = xq + tile.bh * head,
                                         .k = xk + tile.bh / group * head,
                                         .v = xv + tile.bh / group * head,
                                         .d = d,
                                         .first = tile.first,
                                         .rows = tile.rows,
                                         .visible = tile.visible,
                                         .causal = visible.causal},
                                        to, step, sums, R(scale));
                            });
  });
}

}  // namespace brine::BRINE_CPU
