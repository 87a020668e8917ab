// Attention over lists of key blocks on inputs in bf16, in both directions: as block_attention.cpp
// and block_attention_backward.cpp, with products of pairs. Sums, softmax and outputs are f32;
// probabilities and the gradients of scores are rounded to bf16 before they meet other inputs.
#include "tensor/cpu/blocks/block_pairs.h"

#include "tensor/base/math.h"
#include "tensor/cpu/blocks/block_tiles.h"
#include "tensor/kernels/blocks.h"

namespace brine::BRINE_CPU {
namespace {

constexpr int64_t kQueries = kFlashQueries, kKeys = kFlashKeys;

// Keys and values of a group in the forms that products read.
struct Group {
  const bf16 *k, *v;  // [T, d]
  const uint32_t *k_transposed,
      *v_transposed;  // [d, words_of(T)] transposed pairs of keys; may be null
  int64_t d, width;
};

// sums [d, lanes] += transposed pairs of keys times `pairs` of weights [keys / 2, lanes], for all
// runs of a chunk; the single last key of an odd number is added from `weights`.
void add_keys(const KeyChunks& chunks, const uint32_t* transposed, const bf16* rows,
              const Group& of, const uint32_t* pairs, const float* weights, int64_t lanes,
              float* sums, bool add, const float* factors) {
  int64_t n = 0;
  for (const KeyRun& at : chunks) {
    const int64_t even = at.count / 2 * 2;
    if (even > 0 || factors || !add) {
      pair_tile::product(of.d, lanes, even / 2, {transposed + at.first / 2, of.width},
                         {pairs + n / 2 * lanes, lanes}, {sums, lanes},
                         {.add = add, .factors = factors});
      add = true;
      factors = nullptr;
    }
    for (int64_t c = 0; at.count > even && c < of.d; ++c) {
      const float value = float(rows[(at.first + even) * of.d + c]);
      const float* weight = weights + (n + even) * lanes;
#pragma omp simd
      for (int64_t m = 0; m < lanes; ++m) sums[c * lanes + m] += value * weight[m];
    }
    n += at.count;
  }
}

// s [keys, lanes] = rows of keys or values times words of lanes [d / 2, lanes].
void multiply_keys(const KeyChunks& chunks, const bf16* rows, int64_t d, const uint32_t* lanes_of,
                   int64_t lanes, float* s) {
  for (const KeyRun& at : chunks) {
    pair_tile::product(at.count, lanes, d / 2, {words(rows + at.first * d), d / 2},
                       {lanes_of, lanes}, {s, lanes});
    s += at.count * lanes;
  }
}

// Words of lanes from rows of the tile's heads, gathered in `rows` [lanes, d].
void transpose_heads(uint32_t* to, bf16* rows, const BlockTile& tile, const bf16* from,
                     int64_t head, int64_t d, int64_t lanes) {
  std::fill_n(rows, lanes * d, bf16(0.0f));
  for (int64_t h = 0; h < tile.heads; ++h) {
    std::copy_n(from + h * head, tile.rows * d, rows + h * tile.R * d);
  }
  transpose_words(to, lanes, words(rows), d / 2, lanes, d / 2);
}

struct Rows {
  const bf16* q;  // of the tile's first head and row
  int64_t head, rows;
  float scale;
};

void attend(const BlockTile& tile, int64_t block, const Group& of, const Rows& in, float* y,
            float* lse) {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  const int64_t d = of.d, lanes = whole_lanes(tile.lanes());
  thread_local Scratch<float> scratch;
  scratch.reserve((d + kKeys) * kQueries, 2);
  float *out = scratch.take(d * kQueries), *s = scratch.take(kKeys * kQueries);
  thread_local Scratch<uint32_t> pairs;
  pairs.reserve((d + kKeys / 2) * kQueries + kPairLanes, 3);
  uint32_t *q = pairs.take(d / 2 * kQueries + kPairLanes), *p = pairs.take(kKeys / 2 * kQueries);
  bf16* gathered = reinterpret_cast<bf16*>(pairs.take(d / 2 * kQueries));
  transpose_heads(q, gathered, tile, in.q, in.head, d, lanes);
  Running<float> run;
  std::fill_n(run.maximum, lanes, std::numeric_limits<float>::lowest());
  std::fill_n(run.sum, lanes, 0.0f);
  const LaneRows<float> rows_of(tile, lanes);
  thread_local KeyChunks chunks;
  chunks.begin(tile, block);
  for (bool first = true; chunks.next(); first = false) {
    multiply_keys(chunks, of.k, d, q, lanes, s);
    chunks.each_hidden([&](int64_t n, int64_t count, int64_t row) {
      rows_of.hide(s + n * lanes, count, row, kNothing);
    });
    auto nothing = [](int64_t) {};
    const int64_t keys = chunks.keys();
    if (lanes == kQueries) {
      soften<kQueries>(s, lanes, keys, lanes, in.scale, run, nothing);
    } else if (lanes == kQueries / 2) {
      soften<kQueries / 2>(s, lanes, keys, lanes, in.scale, run, nothing);
    } else {
      soften<0>(s, lanes, keys, lanes, in.scale, run, nothing);
    }
    pair_keys(p, s, keys / 2 * 2, lanes, lanes);
    add_keys(chunks, of.v_transposed, of.v, of, p, s, lanes, out, false,
             first ? nullptr : run.rescale);
  }
  for (int64_t h = 0; h < tile.heads; ++h) {
    const int64_t lane = h * tile.R;
    transpose<false>(Lanes<float>{y + h * in.head, d}, Lanes<const float>{out + lane, lanes}, d,
                     tile.rows, [&](int64_t m) { return 1 / run.sum[lane + m]; });
    for (int64_t r = 0; r < tile.rows; ++r) {
      lse[h * in.rows + r] = run.maximum[lane + r] * in.scale + math::log(run.sum[lane + r]);
    }
  }
}

const uint32_t* group_words(const Tensor& transposed, int64_t bg, int64_t d, int64_t T) {
  return transposed.defined() ? words(transposed.data<bf16>()) + bg * d * words_of(T) : nullptr;
}

}  // namespace

void block_attention_pairs(Tensor y, Tensor lse, Tensor q, Tensor k, Tensor v, BlockMask mask,
                           Visibility visible, double scale) {
  const int64_t T = k.dim(2), d = q.dim(3), rows = q.dim(2);
  const BlockPasses at(mask, visible, q.dim(0), q.dim(1), k.dim(1), rows);
  const Tensor transposed = transposed_heads(v, RowWidths(visible, T));
  at.forward<float>(y, lse, [&](const BlockTile& tile, int64_t row, float* to, float* sums) {
    const Group of{.k = k.data<bf16>() + tile.bg * T * d,
                   .v = v.data<bf16>() + tile.bg * T * d,
                   .k_transposed = nullptr,
                   .v_transposed = group_words(transposed, tile.bg, d, T),
                   .d = d,
                   .width = words_of(T)};
    attend(tile, mask.block, of,
           {.q = q.data<bf16>() + row * d, .head = rows * d, .rows = rows, .scale = float(scale)},
           to, sums);
  });
}

namespace {

// A tile's rows in the forms that its gradients read; room for kQueries lanes.
struct Room {
  float *s, *ds, *dq, *lse, *dot;  // [kKeys, lanes] twice, [d, lanes], [lanes] twice
  uint32_t *q, *dy;                // [d / 2, lanes] pairs along d
  uint32_t *q_pairs, *dy_pairs;    // [lanes / 2, d] pairs of rows
  uint32_t* ds_pairs;              // [kKeys / 2, lanes] pairs of keys
  uint32_t *s_words, *ds_words;    // [kKeys, lanes / 2] pairs of rows
  bf16 *q_rows, *dy_rows;          // [lanes, d]

  explicit Room(int64_t d) {
    thread_local Scratch<float> floats;
    floats.reserve((2 * kKeys + d + 2) * kQueries, 5);
    for (auto [to, n] : {std::pair{&s, kKeys}, {&ds, kKeys}, {&dq, d}, {&lse, 1}, {&dot, 1}}) {
      *to = floats.take(n * kQueries);
    }
    thread_local Scratch<uint32_t> pairs;
    pairs.reserve((d * 2 + kKeys * 3 / 2 + d) * kQueries + 2 * kPairLanes, 9);
    q = pairs.take(d / 2 * kQueries + kPairLanes);
    dy = pairs.take(d / 2 * kQueries + kPairLanes);
    for (uint32_t** to : {&q_pairs, &dy_pairs}) *to = pairs.take(d / 2 * kQueries);
    for (uint32_t** to : {&ds_pairs, &s_words, &ds_words}) *to = pairs.take(kKeys / 2 * kQueries);
    q_rows = reinterpret_cast<bf16*>(pairs.take(d / 2 * kQueries));
    dy_rows = reinterpret_cast<bf16*>(pairs.take(d / 2 * kQueries));
  }
};

struct BackwardRows {
  const bf16* q;
  const float *dy, *y, *lse;
  int64_t head, rows;
  float scale;
};

void load_tile(const BlockTile& tile, const BackwardRows& in, const Room& room, int64_t d,
               int64_t lanes) {
  std::fill_n(room.q_rows, lanes * d, bf16(0.0f));
  std::fill_n(room.dy_rows, lanes * d, bf16(0.0f));
  std::fill_n(room.lse, lanes, 0.0f);
  std::fill_n(room.dot, lanes, 0.0f);
  for (int64_t h = 0; h < tile.heads; ++h) {
    for (int64_t r = 0; r < tile.rows; ++r) {
      const int64_t lane = h * tile.R + r, from = h * in.head + r * d;
      std::copy_n(in.q + from, d, room.q_rows + lane * d);
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t c = 0; c < d; ++c) {
        const bf16 x(in.dy[from + c]);  // the rounded one, as in flash_pairs_backward.cpp
        sum += float(x) * in.y[from + c];
        room.dy_rows[lane * d + c] = x;
      }
      room.dot[lane] = in.scale * sum;
      room.lse[lane] = in.lse[h * in.rows + r];
    }
  }
  transpose_words(room.q, lanes, words(room.q_rows), d / 2, lanes, d / 2);
  transpose_words(room.dy, lanes, words(room.dy_rows), d / 2, lanes, d / 2);
  pair_rows(room.q_pairs, room.q_rows, lanes, d);
  pair_rows(room.dy_pairs, room.dy_rows, lanes, d);
}

// to [keys, lanes / 2] = the pairs of neighbouring lanes.
void pair_lanes(uint32_t* to, const float* x, int64_t keys, int64_t lanes) {
  for (int64_t j = 0; j < keys; ++j, to += lanes / 2, x += lanes) {
#pragma omp simd
    for (int64_t l = 0; l < lanes / 2; ++l) to[l] = pair_of(x[2 * l], x[2 * l + 1]);
  }
}

void differentiate(const BlockTile& tile, int64_t block, const Group& of, const BackwardRows& in,
                   float* dq, float* dk, float* dv) {
  const int64_t d = of.d, lanes = whole_lanes(tile.lanes());
  const Room room(d);
  load_tile(tile, in, room, d, lanes);
  const LaneRows<float> rows_of(tile, lanes);
  thread_local KeyChunks chunks;
  chunks.begin(tile, block);
  for (bool begun = false; chunks.next(); begun = true) {
    const int64_t keys = chunks.keys();
    multiply_keys(chunks, of.k, d, room.q, lanes, room.s);
    multiply_keys(chunks, of.v, d, room.dy, lanes, room.ds);
    differentiate_scores(room.s, room.ds, keys, lanes, in.scale, room.lse, room.dot);
    chunks.each_hidden([&](int64_t j, int64_t count, int64_t row) {
      rows_of.hide(room.s + j * lanes, count, row, 0.0f);
      rows_of.hide(room.ds + j * lanes, count, row, 0.0f);
    });
    if (dq) {
      pair_keys(room.ds_pairs, room.ds, keys / 2 * 2, lanes, lanes);
      add_keys(chunks, of.k_transposed, of.k, of, room.ds_pairs, room.ds, lanes, room.dq, begun,
               nullptr);
    }
    if (dv) pair_lanes(room.s_words, room.s, keys, lanes);
    if (dk) pair_lanes(room.ds_words, room.ds, keys, lanes);
    int64_t n = 0;
    for (const KeyRun& at : chunks) {
      auto add_rows = [&](const uint32_t* weights, const uint32_t* rows, float* sums) {
        pair_tile::product(at.count, d, lanes / 2, {weights + n * (lanes / 2), lanes / 2},
                           {rows, d}, {sums + at.first * d, d}, {.add = true});
      };
      if (dv) add_rows(room.s_words, room.dy_pairs, dv);
      if (dk) add_rows(room.ds_words, room.q_pairs, dk);
      n += at.count;
    }
  }
  for (int64_t h = 0; dq && h < tile.heads; ++h) {
    transpose<false>(Lanes<float>{dq + h * in.head, d},
                     Lanes<const float>{room.dq + h * tile.R, lanes}, d, tile.rows,
                     [](int64_t) { return 1.0f; });
  }
}

}  // namespace

void block_attention_pairs_backward(Tensor dq, Tensor dk, Tensor dv, Tensor dy, Tensor q, Tensor k,
                                    Tensor v, Tensor y, Tensor lse, BlockMask mask,
                                    Visibility visible, double scale) {
  const int64_t T = k.dim(2), d = q.dim(3), rows = q.dim(2);
  const BlockPasses at(mask, visible, q.dim(0), q.dim(1), k.dim(1), rows);
  const Tensor transposed = dq.defined() ? transposed_heads(k, RowWidths(visible, T)) : Tensor();
  const BlockGradients<float> sums(dk, dv, d, at.tiles);
  at.backward<float>(dq, sums, d,
                     [&](const BlockTile& tile, int64_t row, float* to, float* to_k, float* to_v) {
                       const Group of{.k = k.data<bf16>() + tile.bg * T * d,
                                      .v = v.data<bf16>() + tile.bg * T * d,
                                      .k_transposed = group_words(transposed, tile.bg, d, T),
                                      .v_transposed = nullptr,
                                      .d = d,
                                      .width = words_of(T)};
                       differentiate(tile, mask.block, of,
                                     {.q = q.data<bf16>() + row * d,
                                      .dy = dy.data<float>() + row * d,
                                      .y = y.data<float>() + row * d,
                                      .lse = lse.data<float>() + row,
                                      .head = rows * d,
                                      .rows = rows,
                                      .scale = float(scale)},
                                     to, to_k, to_v);
                     });
}

}  // namespace brine::BRINE_CPU
