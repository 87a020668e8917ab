// The gradients of attention over lists of key blocks in 16 bits, on tensor cores: two passes as in
// block_attention_backward.cu, whose warps share bands of 16 lanes, or of 16 keys, as those of
// block_attention_half.cu do.
//
// Both passes recompute the probabilities P = exp(S - lse) and their slopes P (dP - dy . y). Of
// queries, S = q k^T, and of keys, S^T = k q^T: either has the layout of a left factor of the
// product that follows, so neither leaves the registers. P, the slopes and dy are rounded to 16
// bits in these products, sums are f32.
#include <bit>

#include "tensor/cuda/blocks/block_lists.cuh"
#include "tensor/cuda/core/half_products.cuh"
#include "tensor/kernels/blocks.h"

namespace brine::cuda {
namespace {

constexpr const char* kHalfName = "block_attention_backward";
constexpr int64_t kLanesOfSlice = 1024;  // fewest: its sums are not worth an addition otherwise

// What is subtracted from the scores and slopes of a row, in powers of two.
struct alignas(8) RowMeans {
  float lse, dot;  // lse log2 e, dy . y
};

template <class S>
struct HalfBackwardOperands {
  const S *q, *dy;           // [B, H, rows, d]; dy times the factor
  const S *k, *v;            // [B, G, T, d]
  const RowMeans* means;     // [B, H, rows]
  const uint32_t* max_bits;  // the bits of the largest |dy|, null: the factor is 1
  float scale;
};

// Small gradients would vanish in f16. The factor is the power of two that takes the largest |dy|
// to [1, 2), its inverse what results are multiplied by.
struct Factor {
  float up = 1, down = 1;
  __device__ explicit Factor(const uint32_t* max_bits) {
    const uint32_t exponent = max_bits ? *max_bits >> 23 : 127;
    if (exponent < 1 || exponent > 253) return;  // zero, or not finite
    up = std::bit_cast<float>((254 - exponent) << 23);
    down = std::bit_cast<float>(exponent << 23);
  }
};

__device__ inline bool is_padding(const BlockSizes& at, int64_t r) {
  const int64_t head = quotient(r, at.rows), row = r - head * at.rows, n = quotient(row, at.R);
  return row - n * at.R >= at.valid(quotient(head, at.H), n);
}

// max_bits: initially zero. Rows of padding are not read.
__global__ void max_bits_kernel(uint32_t* max_bits, const float* dy, const BlockSizes at,
                                int64_t packs) {
  uint32_t local_max = 0;
  for (int64_t i = piece(); i < packs; i += int64_t(gridDim.x) * blockDim.x) {
    if (is_padding(at, quotient(4 * i, at.d))) continue;
    const Pack<float, 4> x = load_pack<4>(dy + 4 * i);
#pragma unroll
    for (int e = 0; e < 4; ++e)
      local_max = Max{}(local_max, std::bit_cast<uint32_t>(x.v[e]) & 0x7fffffffu);
  }
  local_max = warp_reduce(local_max, Max{});
  if (threadIdx.x % kWarp == 0 && local_max > 0) atomicMax(max_bits, local_max);
}

// A warp for each row: dy in 16 bits, and the means. What is subtracted from products of the
// rounded dy is a product of it too. Nothing is written for rows of padding.
template <class S>
__global__ void prepare_kernel(S* to, RowMeans* means, const float* dy, const float* y,
                               const float* lse, const uint32_t* max_bits, const BlockSizes at,
                               int64_t rows) {
  const int64_t r = piece() / kWarp;
  if (r >= rows || is_padding(at, r)) return;
  const Factor factor(max_bits);
  const int lane = int(threadIdx.x) % kWarp;
  float sum = 0;
  for (int64_t c = 2 * lane; c < at.d; c += 2 * kWarp) {
    const auto slope = load_pack<2>(dy + r * at.d + c), value = load_pack<2>(y + r * at.d + c);
    const uint32_t pair = pair_of<S>(slope.v[0] * factor.up, slope.v[1] * factor.up);
    sum += first_of<S>(pair) * value.v[0] + second_of<S>(pair) * value.v[1];
    *reinterpret_cast<uint32_t*>(to + r * at.d + c) = pair;
  }
  sum = warp_sum(sum);
  if (lane == 0) means[r] = {lse[r] * kLog2OfE, sum};
}

// D: numbers of a row in shared memory; Bands: of 16 lanes or keys, the owners of the sums.
template <class Number, int D, int Bands>
struct Tile {
  using S = Number;
  static constexpr int size = D, bands = Bands, splits = Bands < 4 ? 4 / Bands : 1;
  static constexpr int sum_rows = 16 * Bands, threads = kWarp * Bands * splits;
  static constexpr int chunk = 64, each = chunk / splits;  // rows of a step; of a warp
  static constexpr int step = D + 8;  // 16 bytes more: rows of a matrix are in different banks
  static constexpr int room = chunk * step;        // numbers of one of the two factors of a step
  static constexpr int loaders = threads / chunk;  // threads that load a row
  static_assert(threads % chunk == 0);
  static_assert(size_t(bands * (splits - 1) * kWarp * D / 2) * sizeof(float) <=
                4 * room * sizeof(S));
  // Two steps: both factors, the means, and what is seen of each row.
  static constexpr size_t shared =
      4 * room * sizeof(S) + 2 * chunk * (sizeof(RowMeans) + sizeof(int32_t));
};

// What a thread reads and writes in shared memory.
template <class Tile>
struct ThreadLayout {
  using S = typename Tile::S;
  S* room;  // step 0's first and second factor, those of step 1
  RowMeans* means;
  int32_t* seen;
  int lane, g, t, split, band;
  int slot, part;  // the row of a step that the thread loads, the first number of it

  __device__ ThreadLayout()
      : room(dynamic_shared<S>()),
        means(reinterpret_cast<RowMeans*>(room + 4 * Tile::room)),
        seen(reinterpret_cast<int32_t*>(means + 2 * Tile::chunk)),
        lane(int(threadIdx.x % kWarp)),
        g(lane / 4),
        t(lane % 4),
        split(int(threadIdx.x / kWarp % Tile::splits)),
        band(int(threadIdx.x / kWarp / Tile::splits)),
        slot(int(threadIdx.x / Tile::loaders)),
        part(int(threadIdx.x % Tile::loaders) * 8) {}

  // Begins to copy the thread's part of a row of both factors.
  __device__ void copy(int stage, const S* first, const S* second, bool present, int64_t d) const {
    S* to = room + 2 * stage * Tile::room + slot * Tile::step;
#pragma unroll
    for (int i = 0; i < Tile::size; i += Tile::loaders * 8) {
      const int c = i + part;
      if (Tile::size % (Tile::loaders * 8) > 0 && c >= Tile::size) break;
      const bool some = present && c < d;
      copy_16(to + c, first + (some ? c : 0), some);
      copy_16(to + Tile::room + c, second + (some ? c : 0), some);
    }
  }
};

// Of rows g and g + 8, null: zeros.
template <class S, int D>
__device__ inline void load_left(uint32_t (&to)[D / 16][4], const S* const (&rows)[2], int t,
                                 int64_t d) {
#pragma unroll
  for (int n = 0; n < D / 8; ++n) {
    const int column = 8 * n + 2 * t;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      to[n / 2][n % 2 * 2 + i] =
          rows[i] && column < d ? *reinterpret_cast<const uint32_t*>(rows[i] + column) : 0;
    }
  }
}

// s [16, 16] += a b^T, b: 16 rows in shared memory.
template <class S, int D>
__device__ inline void multiply_rows(float (&s)[2][4], const uint32_t (&a)[D / 16][4], const S* b,
                                     int lane) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int c = 0; c < D / 16; c += 2) {
      uint32_t x[4];
      load_matrices<false>(x, b + (8 * n + lane % 8) * (D + 8) + 16 * c + lane / 8 * 8);
      multiply_add<S>(s[n], a[c], {x[0], x[1]});
      multiply_add<S>(s[n], a[c + 1], {x[2], x[3]});
    }
  }
}

// sums [16, D] += s b, s rounded.
template <class S, int D>
__device__ inline void add_rows(float (&sums)[D / 8][4], const float (&s)[2][4], const S* b,
                                int lane) {
  const uint32_t a[4] = {pair_of<S>(s[0][0], s[0][1]), pair_of<S>(s[0][2], s[0][3]),
                         pair_of<S>(s[1][0], s[1][1]), pair_of<S>(s[1][2], s[1][3])};
#pragma unroll
  for (int c = 0; c < D / 8; c += 2) {
    uint32_t x[4];
    load_matrices<true>(x, b + lane % 16 * (D + 8) + 8 * c + lane / 16 * 8);
    multiply_add<S>(sums[c], a, {x[0], x[1]});
    multiply_add<S>(sums[c + 1], a, {x[2], x[3]});
  }
}

// A score -> its probability, the gradient of it -> that of the score, both without the scale.
__device__ inline void differentiate(float& score, float& slope, bool hidden, const RowMeans& of,
                                     float scale) {
  const float p = hidden ? 0.0f : exp2_nonpositive(score * scale - of.lse);
  score = p;
  slope = hidden ? 0.0f : p * (slope - of.dot);
}

// The first warp of a band gets the sums of all of its warps, in order. All threads call.
template <class Tile, int N>
__device__ inline void add_splits(float (&sums)[N][4], const ThreadLayout<Tile>& at) {
  if constexpr (Tile::splits > 1) {
    auto* handed = reinterpret_cast<float*>(at.room);
    auto cell = [&](int of, int n) -> float& {
      return handed[((at.band * (Tile::splits - 1) + of - 1) * 4 * N + n) * kWarp + at.lane];
    };
    __syncthreads();
    if (at.split > 0) {
#pragma unroll
      for (int n = 0; n < 4 * N; ++n) cell(at.split, n) = sums[n / 4][n % 4];
    }
    __syncthreads();
    if (at.split > 0) return;
    for (int of = 1; of < Tile::splits; ++of) {
#pragma unroll
      for (int n = 0; n < 4 * N; ++n) sums[n / 4][n % 4] += cell(of, n);
    }
  }
}

// Row i of the thread's two.
template <int N>
__device__ inline void store_row(float* to, const float (&sums)[N][4], int i, int t, int64_t d,
                                 float share) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const int column = 8 * n + 2 * t;
    if (column >= d) continue;
    store_pack(to + column, Pack<float, 2>{sums[n][2 * i] * share, sums[n][2 * i + 1] * share});
  }
}

// ---- the gradients of queries
template <class Tile, int D = Tile::size>
__global__ void __launch_bounds__(Tile::threads, D > 64 ? 1 : 512 / Tile::threads)
    queries_kernel(float* dq, const HalfBackwardOperands<typename Tile::S> in,
                   const BlockSizes at) {
  using S = typename Tile::S;
  const ThreadLayout<Tile> my;
  const BlockTile tile(at);
  const float scale = in.scale * kLog2OfE;

  int rows[2];
  RowMeans means[2];
  uint32_t q[D / 16][4], dy[D / 16][4];
  {
    const S *of_q[2], *of_dy[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int l = 16 * my.band + my.g + 8 * i;
      const bool valid = tile.is_valid(l, at);
      rows[i] = valid ? tile.r0 + tile.row(l, at) : -1;
      means[i] = valid ? in.means[tile.of_q(l, at)] : RowMeans{0, 0};
      of_q[i] = valid ? in.q + tile.of_q(l, at) * at.d : nullptr;
      of_dy[i] = valid ? in.dy + tile.of_q(l, at) * at.d : nullptr;
    }
    load_left<S, D>(q, of_q, my.t, at.d);
    load_left<S, D>(dy, of_dy, my.t, at.d);
  }

  // A step copies the keys whose entry the step before has read.
  const int count = int(tile.keys), block = int(at.block), before = int(tile.first) - tile.r0;
  const S *all_k = in.k + tile.bg * at.T * at.d, *all_v = in.v + tile.bg * at.T * at.d;
  int32_t entry = 0, offset = 0;  // of the thread's next key; its number in the block
  auto read = [&](int j) {
    const unsigned p = unsigned(j + my.slot), e = p / unsigned(block);
    if (j + my.slot >= count) return;
    entry = tile.entries[e];
    offset = int32_t(p - e * unsigned(block));
  };
  auto load = [&](int j, int stage) {
    const bool present = j + my.slot < count;
    const int32_t key = present ? int(entry_block(entry)) * block + offset : 0;
    if (my.part == 0) {
      const int32_t first = key - before, row = int32_t(entry_row(entry));
      my.seen[stage * Tile::chunk + my.slot] =
          present ? (first > row ? first : row) : std::numeric_limits<int32_t>::max();
    }
    const int64_t to_key = key * at.d;
    my.copy(stage, all_k + to_key, all_v + to_key, present, at.d);
    end_copies();
    read(j + Tile::chunk);
  };

  float sums[D / 8][4] = {};
  const bool works = 16 * my.band < tile.heads * at.span;
  read(0);
  if (count > 0) load(0, 0);
  int stage = 0;
  for (int j = 0; j < count; j += Tile::chunk, stage ^= 1) {
    wait_copies<0>();
    __syncthreads();
    if (j + Tile::chunk < count) load(j + Tile::chunk, stage ^ 1);
    if (!works) continue;
#pragma unroll 1
    for (int n = my.split * Tile::each; n < (my.split + 1) * Tile::each; n += 16) {
      if (j + n >= count) break;
      const S *keys = my.room + 2 * stage * Tile::room + n * Tile::step,
              *values = keys + Tile::room;
      float s[2][4] = {}, slope[2][4] = {};
      multiply_rows<S, D>(s, q, keys, my.lane);
      multiply_rows<S, D>(slope, dy, values, my.lane);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int32_t from = my.seen[stage * Tile::chunk + n + 8 * m + 2 * my.t + e % 2];
          differentiate(s[m][e], slope[m][e], rows[e / 2] < from, means[e / 2], scale);
        }
      }
      add_rows<S, D>(sums, slope, keys, my.lane);
    }
  }

  add_splits<Tile>(sums, my);
  if (my.split > 0) return;
  const float share = in.scale * Factor(in.max_bits).down;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int l = 16 * my.band + my.g + 8 * i;
    if (tile.head(l, at) >= tile.heads || tile.row(l, at) >= tile.q_rows) continue;
    // Rows of padding have zeros.
    store_row(dq + tile.of_q(l, at) * at.d, sums, i, my.t, at.d, share);
  }
}

// ---- the gradients of keys and values
template <class Tile, int D = Tile::size>
__global__ void __launch_bounds__(Tile::threads, D > 64 ? 1 : 3)
    keys_kernel(const KeySums<float> to, const HalfBackwardOperands<typename Tile::S> in,
                const BlockSizes at) {
  using S = typename Tile::S;
  const ThreadLayout<Tile> my;
  const KeyTile<float> tile(to, at);
  if (tile.keys == 0 || tile.slice >= tile.used) return;
  const float scale = in.scale * kLog2OfE;

  int thread_keys[2];
  uint32_t k[D / 16][4], v[D / 16][4];
  {
    const S *of_k[2], *of_v[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int n = 16 * my.band + my.g + 8 * i;
      const bool present = n < tile.keys;
      const int64_t first = (tile.bg * at.T + tile.first + n) * at.d;
      thread_keys[i] = present ? n : std::numeric_limits<int32_t>::max();
      of_k[i] = present ? in.k + first : nullptr;
      of_v[i] = present ? in.v + first : nullptr;
    }
    load_left<S, D>(k, of_k, my.t, at.d);
    load_left<S, D>(v, of_v, my.t, at.d);
  }

  // As in queries_kernel; what is seen of a lane are the keys up to its position, -1: none.
  const int count = int(tile.lanes), heads = int(at.heads), R = int(at.R), before = int(tile.first);
  const int b = int(tile.b);
  const int64_t of_group = tile.bg * heads * at.rows;
  const S *all_q = in.q + of_group * at.d, *all_dy = in.dy + of_group * at.d;
  const RowMeans* means = in.means + of_group;
  int32_t entry = 0, head = 0, row = 0;  // of the thread's next lane
  auto read = [&](int j) {
    if (j + my.slot >= count) return;
    const unsigned l = unsigned(j + my.slot), head_rows = l / unsigned(R),
                   e = head_rows / unsigned(heads);
    entry = tile.tiles[e];
    head = int32_t(head_rows - e * unsigned(heads));
    row = int32_t(l - head_rows * unsigned(R));
  };
  auto load = [&](int j, int stage) {
    const int n = int(entry_block(entry));
    const bool present = j + my.slot < count && row >= entry_row(entry) && row < at.valid(b, n);
    const int64_t of_q = present ? head * at.rows + n * R + row : 0;
    if (my.part == 0) {
      my.seen[stage * Tile::chunk + my.slot] = present ? int(at.number(n)) * R + row - before : -1;
      copy_8(my.means + stage * Tile::chunk + my.slot, means + of_q, present);
    }
    my.copy(stage, all_q + of_q * at.d, all_dy + of_q * at.d, present, at.d);
    end_copies();
    read(j + Tile::chunk);
  };

  float dk[D / 8][4] = {}, dv[D / 8][4] = {};
  const bool works = 16 * my.band < tile.keys;
  read(0);
  if (count > 0) load(0, 0);
  int stage = 0;
  for (int j = 0; j < count; j += Tile::chunk, stage ^= 1) {
    wait_copies<0>();
    __syncthreads();
    if (j + Tile::chunk < count) load(j + Tile::chunk, stage ^ 1);
    if (!works) continue;
#pragma unroll 1
    for (int l = my.split * Tile::each; l < (my.split + 1) * Tile::each; l += 16) {
      if (j + l >= count) break;
      const S *q = my.room + 2 * stage * Tile::room + l * Tile::step, *dy = q + Tile::room;
      float s[2][4] = {}, slope[2][4] = {};
      multiply_rows<S, D>(s, k, q, my.lane);
      multiply_rows<S, D>(slope, v, dy, my.lane);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int of = stage * Tile::chunk + l + 8 * m + 2 * my.t + e % 2;
          differentiate(s[m][e], slope[m][e], thread_keys[e / 2] > my.seen[of], my.means[of],
                        scale);
        }
      }
      if (to.dv) add_rows<S, D>(dv, s, dy, my.lane);
      if (to.dk) add_rows<S, D>(dk, slope, q, my.lane);
    }
  }

  const float down = Factor(in.max_bits).down;
  auto store = [&](float(&sums)[D / 8][4], float* all, float* parts, float share) {
    if (!all) return;
    add_splits<Tile>(sums, my);
    if (my.split > 0) return;
    float* first = tile.first_sums(to, at, all, parts);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (thread_keys[i] >= tile.keys) continue;
      store_row(first + thread_keys[i] * at.d, sums, i, my.t, at.d, share);
    }
  };
  store(dk, to.dk, to.dk_parts, in.scale * down);
  store(dv, to.dv, to.dv_parts, down);
}

// ---- launches
template <class S>
class HalfBackward {
 public:
  HalfBackward(const BlockMask& mask, const BlockCall& call, const Tensor& q, const Tensor& k)
      : mask_(mask), call_(call), d_(q.dim(3)), device_(q.device()) {
    heads_ = q.dim(1) / k.dim(1);
  }

  void queries(const Tensor& dq, const HalfBackwardOperands<S>& in) const {
    if (!dq.defined() || dq.numel() == 0) return;
    const int64_t lanes = heads_ * mask_.tile;
    of_size([&]<int D>() {
      auto run = [&]<int Bands>() {
        using Layout = Tile<S, D, Bands>;
        const BlockSizes at = call_.sizes(Layout::sum_rows, true);
        launch(kHalfName, queries_kernel<Layout>, at.grid(), dim3(Layout::threads), Layout::shared,
               dq.data<float>(), in, at);
      };
      if (lanes <= 16) return run.template operator()<1>();
      if (lanes <= 32) return run.template operator()<2>();
      if (lanes <= 64) return run.template operator()<4>();
      if (lanes <= 96) return run.template operator()<6>();
      run.template operator()<8>();
    });
  }

  void keys(const Tensor& dk, const Tensor& dv, const HalfBackwardOperands<S>& in) const {
    if (!dk.defined() && !dv.defined()) return;
    const BlockSizes at = call_.sizes(1, true);
    const BlockLists lists(kHalfName, mask_, at.groups, at.T);
    of_size([&]<int D>() {
      auto run = [&]<int Bands>() {
        using Layout = Tile<S, D, Bands>;
        auto to = lists.template sums<float>(dk, dv, kLanesOfSlice);
        to.span = int(std::min<int64_t>(mask_.block, Layout::sum_rows));
        in_batches(kHalfName, to, at, device_,
                   [&](const KeySums<float>& of_batch, dim3 thread_blocks) {
                     launch(kHalfName, keys_kernel<Layout>, thread_blocks, dim3(Layout::threads),
                            Layout::shared, of_batch, in, at);
                   });
      };
      if (mask_.block <= 16) return run.template operator()<1>();
      if (mask_.block <= 32) return run.template operator()<2>();
      run.template operator()<4>();
    });
  }

  // Of all tiles of the size the same.
  static size_t shared(int64_t d) {
    return d <= 64 ? Tile<S, 64, 1>::shared : Tile<S, 128, 1>::shared;
  }

 private:
  template <class F>
  void of_size(F&& f) const {
    if (d_ <= 64) return f.template operator()<64>();
    f.template operator()<128>();
  }

  const BlockMask& mask_;
  const BlockCall& call_;
  int64_t d_, heads_;
  Device device_;
};

}  // namespace

bool block_attention_backward_half(Tensor dq, Tensor dk, Tensor dv, Tensor dy, Tensor q, Tensor k,
                                   Tensor v, Tensor y, Tensor lse, const BlockMask& mask,
                                   const BlockCall& call, double scale) {
  const int64_t d = q.dim(3), rows = lse.numel();
  auto typed = [&]<class S>() {
    auto at_pack = [](const Tensor& t) { return aligned(16, data_or_null<float>(t)); };
    // Lanes and keys are counted in 32 bits.
    if (d > 128 || std::max(q.dim(1) / k.dim(1) * q.dim(2), k.dim(2)) > (int64_t(1) << 30) ||
        !packed_rows<S>(d, q.data<S>(), k.data<S>(), v.data<S>()) || !at_pack(dq) || !at_pack(dk) ||
        !at_pack(dv) || !at_pack(dy) || !at_pack(y) || HalfBackward<S>::shared(d) > max_shared()) {
      return false;
    }
    const Tensor slopes = Tensor::like(q), max_bits = Tensor::empty({1}, Dtype::i32, q.device()),
                 means = Tensor::empty({rows, 2}, Dtype::f32, q.device());
    auto* of_rows = reinterpret_cast<RowMeans*>(means.data<float>());
    const HalfBackwardOperands<S> in{
        .q = q.data<S>(),
        .dy = slopes.data<S>(),
        .k = k.data<S>(),
        .v = v.data<S>(),
        .means = of_rows,
        .max_bits = std::is_same_v<S, f16>
                        ? reinterpret_cast<const uint32_t*>(max_bits.data<int32_t>())
                        : nullptr,
        .scale = float(scale)};
    const BlockSizes at = call.sizes(1, true);
    const int64_t packs = rows * d / 4;
    if (in.max_bits && packs > 0) {
      auto* to = reinterpret_cast<uint32_t*>(max_bits.data<int32_t>());
      check_cuda(cudaMemsetAsync(to, 0, sizeof(uint32_t), stream()), kHalfName);
      launch(kHalfName, max_bits_kernel,
             dim3(blocks_for(std::min<int64_t>(packs, 1 << 18), kThreads)), dim3(kThreads), 0, to,
             dy.data<float>(), at, packs);
    }
    launch_each(kHalfName, rows * kWarp, prepare_kernel<S>, slopes.data<S>(), of_rows,
                dy.data<float>(), y.data<float>(), lse.data<float>(), in.max_bits, at, rows);
    const HalfBackward<S> pass(mask, call, q, k);
    pass.queries(dq, in);
    pass.keys(dk, dv, in);
    return true;
  };
  return q.dtype() == Dtype::bf16 ? typed.template operator()<bf16>()
                                  : typed.template operator()<f16>();
}

}  // namespace brine::cuda
