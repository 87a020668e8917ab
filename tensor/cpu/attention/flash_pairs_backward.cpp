// The gradients of tiled attention on inputs in bf16: as flash_attention_backward.cpp, with
// products of pairs. Probabilities and the gradients of scores are rounded to bf16 before they meet
// q, k and dy; sums are f32.
//
// dk and dv of a tile of keys are summed transposed, [d, key]: then what the products read by lanes
// are pairs of neighbouring queries of the same key, which need no transposition.
#include "tensor/base/math.h"
#include "tensor/cpu/attention/flash_pairs.h"
#include "tensor/cpu/attention/flash_tasks.h"
#include "tensor/kernels/attention.h"

namespace brine::BRINE_CPU {
namespace {

constexpr int64_t kQueries = 128, kKeys = 64;

// Data of one call. Words are transposed pairs of queries, words_of(T) for each of d rows.
struct Call {
  int64_t H, G, T, d, width;
  RowWidths widths;
  bool causal;
  float scale;
  const bf16 *q, *k, *v, *dy;          // [B, H, T, d], [B, G, T, d] twice, [B, H, T, d]
  const uint32_t *q_words, *dy_words;  // [B, H, d, width]
  const float *lse, *dot;              // [B, H, T]; dot = scale dy . y
};

// Scratch memory of a tile of keys.
struct Room {
  float *s, *ds;                 // [kQueries, kKeys]
  float *dk, *dv;                // [d, kKeys]
  uint32_t *k, *v;               // [d / 2, kKeys] pairs along d
  uint32_t* k_pairs;             // [kKeys / 2, d] pairs along keys
  uint32_t *p_pairs, *ds_pairs;  // [kQueries / 2, kKeys] pairs along queries
  uint32_t* ds_words;            // [kQueries, kKeys / 2] pairs along keys

  explicit Room(int64_t d) {
    thread_local Scratch<float> floats;
    floats.reserve(2 * kKeys * (kQueries + d), 4);
    s = floats.take(kQueries * kKeys);
    ds = floats.take(kQueries * kKeys);
    dk = floats.take(d * kKeys);
    dv = floats.take(d * kKeys);
    thread_local Scratch<uint32_t> pairs;
    pairs.reserve(kKeys * (3 * d / 2 + 3 * kQueries / 2), 6);
    k = pairs.take(d / 2 * kKeys);
    v = pairs.take(d / 2 * kKeys);
    k_pairs = pairs.take(kKeys / 2 * d);
    p_pairs = pairs.take(kQueries / 2 * kKeys);
    ds_pairs = pairs.take(kQueries / 2 * kKeys);
    ds_words = pairs.take(kQueries * kKeys / 2);
  }
};

// One row: scores become probabilities, gradients of probabilities those of scores; 0 from lane
// `seen` on.
void differentiate(float* s, float* ds, int64_t seen, int64_t lanes, float scale, float lse,
                   float dot) {
#pragma omp simd
  for (int64_t n = 0; n < seen; ++n) {
    s[n] = math::exp_nonpositive(s[n] * scale - lse);
    ds[n] = s[n] * (ds[n] * scale - dot);
  }
  std::fill(s + seen, s + lanes, 0.0f);
  std::fill(ds + seen, ds + lanes, 0.0f);
}

void pair_up(uint32_t* to, const float* x, const float* next, int64_t lanes) {
#pragma omp simd
  for (int64_t n = 0; n < lanes; ++n) to[n] = pair_of(x[n], next[n]);
}

// The pairs of neighbouring numbers of a row.
void pair_within(uint32_t* to, const float* x, int64_t lanes) {
#pragma omp simd
  for (int64_t n = 0; n < lanes / 2; ++n) to[n] = pair_of(x[2 * n], x[2 * n + 1]);
}

// The tile of keys [first, first + keys) of head bh against all queries that see it.
void tile_of_keys(const Call& at, int64_t bh, int64_t first, int64_t keys,
                  const HeadGradients<float>& to) {
  const int64_t d = at.d, half = d / 2, lanes = whole_lanes(keys), b = bh / at.H;
  const int64_t g = b * at.G + bh % at.H * at.G / at.H, queries = at.widths.valid(b);
  const Room room(d);
  const bf16 *k = at.k + (g * at.T + first) * d, *v = at.v + (g * at.T + first) * d;
  transpose_words(room.k, kKeys, words(k), half, keys, half);
  transpose_words(room.v, kKeys, words(v), half, keys, half);
  pair_rows(room.k_pairs, k, keys, d);
  std::fill_n(room.dk, d * kKeys, 0.0f);
  std::fill_n(room.dv, d * kKeys, 0.0f);
  for (int64_t t = at.causal ? first : 0; t < queries; t += kQueries) {
    const int64_t rows = std::min(kQueries, queries - t), row = bh * at.T + t;
    pair_tile::product(rows, lanes, half, {words(at.q + row * d), half}, {room.k, kKeys},
                       {room.s, kKeys});
    pair_tile::product(rows, lanes, half, {words(at.dy + row * d), half}, {room.v, kKeys},
                       {room.ds, kKeys});
    for (int64_t m = 0; m < rows; ++m) {
      const int64_t seen = at.causal ? std::min(keys, t + m - first + 1) : keys;
      differentiate(room.s + m * kKeys, room.ds + m * kKeys, seen, lanes, at.scale, at.lse[row + m],
                    at.dot[row + m]);
    }
    if (rows % 2) {  // the neighbour of the last query
      std::fill_n(room.s + rows * kKeys, lanes, 0.0f);
      std::fill_n(room.ds + rows * kKeys, lanes, 0.0f);
    }
    const int64_t pairs = (rows + 1) / 2;
    for (int64_t m = 0; m < pairs; ++m) {
      const float *s = room.s + 2 * m * kKeys, *ds = room.ds + 2 * m * kKeys;
      if (to.dv) pair_up(room.p_pairs + m * kKeys, s, s + kKeys, lanes);
      if (to.dk) pair_up(room.ds_pairs + m * kKeys, ds, ds + kKeys, lanes);
    }
    auto add_transposed = [&](const uint32_t* rows_of, const uint32_t* lanes_of, float* sums) {
      pair_tile::product(d, lanes, pairs, {rows_of + bh * d * at.width + t / 2, at.width},
                         {lanes_of, kKeys}, {sums, kKeys}, {.add = true});
    };
    if (to.dv) add_transposed(at.dy_words, room.p_pairs, room.dv);
    if (to.dk) add_transposed(at.q_words, room.ds_pairs, room.dk);
    if (!to.dq) continue;
    for (int64_t m = 0; m < rows; ++m) {
      pair_within(room.ds_words + m * (kKeys / 2), room.ds + m * kKeys, lanes);
    }
    pair_tile::product(rows, d, (keys + 1) / 2, {room.ds_words, kKeys / 2}, {room.k_pairs, d},
                       {to.dq + t * d, d}, {.add = true});
  }
  auto put = [&](float* rows, const float* sums) {
    transpose<false>(Lanes<float>{rows + first * d, d}, Lanes<const float>{sums, kKeys}, d, keys,
                     [](int64_t) { return 1.0f; });
  };
  if (to.dk) put(to.dk, room.dk);
  if (to.dv) put(to.dv, room.dv);
}

// dy [B, T, H d] -> [B, H, T, d] in bf16; dot = scale dy . y of the rounded dy: where values have
// much in common, the products of dy with them have the same error, which then cancels. Rows of
// padding are not read.
Tensor rounded_gradient(float* dot, const Tensor& dy, const Tensor& y, const Call& at, int64_t B) {
  const int64_t H = at.H, T = at.T, d = at.d;
  const Tensor heads = Tensor::empty({B, H, T, d}, Dtype::bf16);
  const float *from = dy.data<float>(), *out = y.data<float>();
  bf16* to = heads.data<bf16>();
  parallel_for(B * H * T, 256, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t bh = r / T, b = bh / H, t = r % T, offset = ((b * T + t) * H + bh % H) * d;
      if (t >= at.widths.valid(b)) continue;
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t c = 0; c < d; ++c) {
        const bf16 x(from[offset + c]);
        to[r * d + c] = x;
        sum += float(x) * out[offset + c];
      }
      dot[r] = at.scale * sum;
    }
  });
  return heads;
}

}  // namespace

void flash_attention_pairs_backward(Tensor dq, Tensor dk, Tensor dv, Tensor dy, Tensor q, Tensor k,
                                    Tensor v, Tensor y, Tensor lse, Visibility visible,
                                    double scale) {
  const int64_t B = q.dim(0), H = q.dim(1), T = q.dim(2), d = q.dim(3);
  const Tensor dot = Tensor::like(lse);
  Call at{.H = H,
          .G = k.dim(1),
          .T = T,
          .d = d,
          .width = words_of(T),
          .widths = RowWidths(visible, T),
          .causal = visible.causal,
          .scale = float(scale),
          .q = q.data<bf16>(),
          .k = k.data<bf16>(),
          .v = v.data<bf16>(),
          .dy = nullptr,
          .q_words = nullptr,
          .dy_words = nullptr,
          .lse = lse.data<float>(),
          .dot = dot.data<float>()};
  const Tensor heads = rounded_gradient(dot.data<float>(), dy, y, at, B);
  const Tensor q_words = transposed_heads(q, at.widths),
               dy_words = transposed_heads(heads, at.widths);
  at.dy = heads.data<bf16>();
  at.q_words = words(q_words.data<bf16>());
  at.dy_words = words(dy_words.data<bf16>());
  each_tile_of_keys<float>(
      dq, dk, dv, q.shape(), d, at.widths, kKeys,
      [&](int64_t bh, int64_t first, int64_t keys, const HeadGradients<float>& to) {
        tile_of_keys(at, bh, first, keys, to);
      });
}

}  // namespace brine::BRINE_CPU
