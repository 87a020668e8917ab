// Tiled attention on inputs in bf16, forward: as flash_attention.cpp, with products of pairs. Sums,
// softmax and outputs are f32; probabilities are rounded to bf16 before they meet the values.
#include "tensor/cpu/attention/flash_pairs.h"

#include <limits>

#include "tensor/cpu/attention/flash_softmax.h"
#include "tensor/cpu/attention/flash_tasks.h"
#include "tensor/kernels/attention.h"

namespace brine::BRINE_CPU {
namespace {

constexpr int64_t kQueries = kFlashQueries, kKeys = kFlashKeys;

struct Head {
  const bf16 *q, *k;   // [T, d]
  const uint32_t* v;   // [d, words_of(T)], transposed pairs of keys
  const bf16* v_rows;  // [T, d]
  int64_t d, T;
};

// A tile's rows of y, `step` apart, and of lse.
void attend(const Head& at, const QueryTile& tile, bool causal, float* y, int64_t step, float* lse,
            float scale) {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  const int64_t first = tile.first, rows = tile.rows, visible = tile.visible;
  const int64_t d = at.d, lanes = whole_lanes(rows), half = d / 2, width = words_of(at.T);
  thread_local Scratch<float> scratch;
  scratch.reserve((d + kKeys) * kQueries, 2);
  float *out = scratch.take(d * kQueries), *s = scratch.take(kKeys * kQueries);
  thread_local Scratch<uint32_t> pairs;
  pairs.reserve((half + kKeys / 2) * kQueries, 2);
  uint32_t *q = pairs.take(half * kQueries), *p = pairs.take(kKeys / 2 * kQueries);
  transpose_words(q, kQueries, words(at.q + first * d), half, rows, half);
  Running<float> run;
  std::fill_n(run.maximum, lanes, std::numeric_limits<float>::lowest());
  std::fill_n(run.sum, lanes, 0.0f);
  for (int64_t j = 0; j < visible; j += kKeys) {
    const int64_t keys = std::min(kKeys, visible - j);
    pair_tile::product(keys, lanes, half, {words(at.k + j * d), half}, {q, kQueries},
                       {s, kQueries});
    for (int64_t n = std::max<int64_t>(0, first - j + 1); causal && n < keys; ++n) {
      std::fill_n(s + n * kQueries, std::min(j + n - first, lanes), kNothing);
    }
    auto nothing = [](int64_t) {};
    lanes == kQueries ? soften<kQueries>(s, kQueries, keys, lanes, scale, run, nothing)
                      : soften<0>(s, kQueries, keys, lanes, scale, run, nothing);
    // The last key of an odd number is added by itself: its neighbour is not visible.
    const int64_t even = keys / 2 * 2;
    pair_keys(p, s, even, lanes, kQueries);
    pair_tile::product(d, lanes, even / 2, {at.v + j / 2, width}, {p, kQueries}, {out, kQueries},
                       {.add = false, .factors = j ? run.rescale : nullptr});
    for (int64_t c = 0; keys > even && c < d; ++c) {
      const float value = float(at.v_rows[(j + even) * d + c]), *weight = s + even * kQueries;
      float* sum = out + c * kQueries;
#pragma omp simd
      for (int64_t m = 0; m < lanes; ++m) sum[m] += value * weight[m];
    }
  }
  transpose<false>(Lanes<float>{y, step}, Lanes<const float>{out, kQueries}, d, rows,
                   [&](int64_t m) { return 1 / run.sum[m]; });
  for (int64_t m = 0; m < rows; ++m) lse[m] = run.maximum[m] * scale + math::log(run.sum[m]);
}

}  // namespace

void flash_attention_pairs(Tensor y, Tensor lse, Tensor q, Tensor k, Tensor v, Visibility visible,
                           double scale) {
  const int64_t group = q.dim(1) / k.dim(1);  // heads that share keys and values
  const int64_t T = q.dim(2), d = q.dim(3), head = T * d;
  const RowWidths widths(visible, T);
  const Tensor transposed = transposed_heads(v, widths);
  each_tile_of_queries<float>(
      y, lse, widths, kQueries, [&](const QueryTile& tile, float* to, int64_t step, float* sums) {
        const int64_t keys = tile.bh / group;
        const Head at{q.data<bf16>() + tile.bh * head,
                      k.data<bf16>() + keys * head,
                      words(transposed.data<bf16>()) + keys * d * words_of(T),
                      v.data<bf16>() + keys * head,
                      d,
                      T};
        attend(at, tile, visible.causal, to, step, sums, float(scale));
      });
}

}  // namespace brine::BRINE_CPU
