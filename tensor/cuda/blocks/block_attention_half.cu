// Attention over lists of key blocks in 16 bits, forward, on tensor cores. A band of 16 lanes is a
// warp's; where a tile has few lanes, several warps share a band and take its keys in turns, and
// the first of them adds up what they have. Keys and values come to shared memory while those
// before them are multiplied.
//
// The weights of a sum are rounded to the type of the values, as in other libraries' attention; the
// sum that divides is of the rounded ones, as in online_softmax.cuh.
#include "tensor/cuda/blocks/block_tile.cuh"
#include "tensor/cuda/core/half_products.cuh"

namespace brine::cuda {
namespace {

template <class S>
struct HalfOperands {
  float *y, *lse;  // [B, H, rows, d], [B, H, rows]
  const S *q, *k, *v;
  float scale;
};

// D: numbers of a row in shared memory; Bands: of 16 lanes.
template <class Number, int D, int Bands>
struct HalfTile {
  using S = Number;
  static constexpr int bands = Bands, splits = Bands < 4 ? 4 / Bands : 1;
  static constexpr int lanes = 16 * Bands, threads = kWarp * Bands * splits;
  static constexpr int keys = splits > 1 ? 32 : 64, chunk = keys * splits;  // of a warp; of a step
  static constexpr int step = D + 8;  // 16 bytes more: rows of a matrix are in different banks
  static constexpr int room = chunk * step;        // numbers of keys, or of values, of a step
  static constexpr int sums = D / 2 + 6;           // floats that a lane of a warp hands over
  static constexpr int loaders = threads / chunk;  // threads that load a key
  static_assert(threads % chunk == 0);
  static_assert(size_t(bands * (splits - 1) * sums * kWarp) * sizeof(float) <=
                size_t(4 * room) * sizeof(S));
  // Two steps of keys and values, and from which row on their keys are seen.
  static constexpr size_t shared = 4 * room * sizeof(S) + 2 * chunk * sizeof(int32_t);
};

// A warp's sums of its band: of lane rows g and g + 8.
template <int D>
struct BandSums {
  float out[D / 8][4] = {};  // columns of eight, as multiply_add() has them
  // kept: sums of the rounded weights, a product with ones; both columns of a row are equal, the
  // first is read.
  float max[2], sum[2] = {}, kept[4] = {};

  __device__ BandSums() {
    // Of a row that sees no key yet; times the scale it must be finite, too.
    for (float& x : max) x = std::numeric_limits<float>::lowest() / 256;
  }

  __device__ void rescale(int i, float share) {
    sum[i] *= share;
    kept[2 * i] *= share;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      out[n][2 * i] *= share;
      out[n][2 * i + 1] *= share;
    }
  }
};

template <class Tile, int D>
__global__ void __launch_bounds__(Tile::threads, D > 64 ? 1 : 512 / Tile::threads)
    attend_half_kernel(const HalfOperands<typename Tile::S> in, const BlockSizes at) {
  using S = typename Tile::S;
  S* room = dynamic_shared<S>();  // step 0's keys and values, those of step 1
  auto* seen = reinterpret_cast<int32_t*>(room + 4 * Tile::room);
  const int warp = int(threadIdx.x / kWarp), lane = int(threadIdx.x % kWarp);
  const int g = lane / 4, t = lane % 4, split = warp % Tile::splits, band = warp / Tile::splits;
  const BlockTile tile(at);
  const float scale = in.scale * kLog2OfE;

  int rows[2];
  uint32_t q[D / 16][4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int l = 16 * band + g + 8 * i;
    const bool valid = tile.is_valid(l, at);
    rows[i] = valid ? tile.r0 + tile.row(l, at) : std::numeric_limits<int32_t>::max();
    const S* from = in.q + (valid ? tile.of_q(l, at) * at.d : 0);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      const int column = 8 * n + 2 * t;
      q[n / 2][n % 2 * 2 + i] =
          valid && column < at.d ? *reinterpret_cast<const uint32_t*>(from + column) : 0;
    }
  }

  // The slot of a step that the thread loads. A step advances its key by `blocks` blocks and
  // `more` keys.
  const int slot = int(threadIdx.x / Tile::loaders), part = int(threadIdx.x % Tile::loaders) * 8;
  const int block = int(at.block), blocks = Tile::chunk / block, more = Tile::chunk % block;
  int offset = slot % block;
  // Of the thread's next key; loaded one step early, so that the load takes no time of its own.
  const int32_t* entry = tile.entries + slot / block;
  int32_t listed = slot < tile.keys ? *entry : 0;
  const int row_shift = int(tile.first - tile.r0);
  const S *k = in.k + tile.bg * at.T * at.d + part, *v = in.v + tile.bg * at.T * at.d + part;
  S* to = room + slot * Tile::step + part;
  auto load = [&](int64_t j, int stage) {
    int32_t key = -1, from = std::numeric_limits<int32_t>::max();
    if (j + slot < tile.keys) {
      key = int32_t(entry_block(listed)) * block + offset;
      const int32_t before = key - row_shift, row = int32_t(entry_row(listed));
      from = before > row ? before : row;
    }
    entry += blocks;
    offset += more;
    if (offset >= block) {
      offset -= block;
      ++entry;
    }
    if (j + Tile::chunk + slot < tile.keys) listed = *entry;
    if (part == 0) seen[stage * Tile::chunk + slot] = from;
    const uint64_t first = uint64_t(unsigned(key < 0 ? 0 : key)) * unsigned(at.d);
#pragma unroll
    for (int c = 0; c < D; c += Tile::loaders * 8) {
      if (D % (Tile::loaders * 8) > 0 && part + c >= D) break;
      const bool present = key >= 0 && part + c < at.d;
      S* copy = to + 2 * stage * Tile::room + c;
      copy_16(copy, k + (present ? first + c : 0), present);
      copy_16(copy + Tile::room, v + (present ? first + c : 0), present);
    }
    end_copies();
  };

  // The band's first row: a key that it sees is seen by all rows of the band.
  const int32_t first_row = warp_reduce(rows[0] < rows[1] ? rows[0] : rows[1],
                                        [](int32_t a, int32_t b) { return a < b ? a : b; });
  const S* keys_of_lane = room + (split * Tile::keys + lane % 8) * Tile::step + lane / 8 * 8;
  const S* values_of_lane =
      room + Tile::room + (split * Tile::keys + lane % 16) * Tile::step + lane / 16 * 8;
  const uint32_t ones = pair_of<S>(1.0f, 1.0f);
  BandSums<D> run;
  const bool works = 16 * band < tile.heads * at.span;
  if (tile.keys > 0) load(0, 0);
  int stage = 0;
  for (int64_t j = 0; j < tile.keys; j += Tile::chunk, stage ^= 1) {
    if (j + Tile::chunk < tile.keys) {
      load(j + Tile::chunk, stage ^ 1);
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    __syncthreads();
    if (works && j + split * Tile::keys < tile.keys) {
      const S *keys = keys_of_lane + 2 * stage * Tile::room,
              *values = values_of_lane + 2 * stage * Tile::room;
      const int32_t* from = seen + stage * Tile::chunk + split * Tile::keys;
      constexpr int kTiles = Tile::keys / 8;
      float s[kTiles][4] = {};
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int c = 0; c < D / 16; c += 2) {
          uint32_t b[4];
          load_matrices<false>(b, keys + 8 * n * Tile::step + 16 * c);
          multiply_add<S>(s[n], q[c], {b[0], b[1]});
          multiply_add<S>(s[n], q[c + 1], {b[2], b[3]});
        }
      }
      bool all_seen = true;
      for (int i = lane; i < Tile::keys; i += kWarp) all_seen = all_seen && from[i] <= first_row;
      if (!__all_sync(kAllLanes, all_seen)) {
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            if (rows[e / 2] < from[8 * n + 2 * t + e % 2]) {
              s[n][e] = -std::numeric_limits<float>::infinity();
            }
          }
        }
      }
      uint32_t p[kTiles][2];
      float max_score[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        max_score[i] = run.max[i];
#pragma unroll
        for (int n = 0; n < kTiles; ++n)
          max_score[i] = fmaxf(max_score[i], fmaxf(s[n][2 * i], s[n][2 * i + 1]));
        max_score[i] = fmaxf(max_score[i], __shfl_xor_sync(kAllLanes, max_score[i], 1));
        max_score[i] = fmaxf(max_score[i], __shfl_xor_sync(kAllLanes, max_score[i], 2));
      }
      // After a few keys the largest scores hardly change.
      if (__any_sync(kAllLanes, max_score[0] > run.max[0] || max_score[1] > run.max[1])) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          run.rescale(i, exp2_nonpositive((run.max[i] - max_score[i]) * scale));
          run.max[i] = max_score[i];
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float zero = -max_score[i] * scale;
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          const float a = exp2_nonpositive(s[n][2 * i] * scale + zero),
                      b = exp2_nonpositive(s[n][2 * i + 1] * scale + zero);
          p[n][i] = pair_of<S>(a, b);
          run.sum[i] += a + b;
        }
      }
#pragma unroll
      for (int n = 0; n < kTiles; n += 2) {
        const uint32_t a[4] = {p[n][0], p[n][1], p[n + 1][0], p[n + 1][1]};
        multiply_add<S>(run.kept, a, {ones, ones});
#pragma unroll
        for (int c = 0; c < D / 8; c += 2) {
          uint32_t b[4];
          load_matrices<true>(b, values + 8 * n * Tile::step + 8 * c);
          multiply_add<S>(run.out[c], a, {b[0], b[1]});
          multiply_add<S>(run.out[c + 1], a, {b[2], b[3]});
        }
      }
    }
    __syncthreads();
  }

  // Each lane has the sums over the keys that it multiplied.
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int by = 1; by < 4; by *= 2) run.sum[i] += __shfl_xor_sync(kAllLanes, run.sum[i], by);
  }
  if constexpr (Tile::splits > 1) {
    auto* handed = reinterpret_cast<float*>(room);
    auto cell = [&](int of, int n) -> float& {
      return handed[((band * (Tile::splits - 1) + of - 1) * Tile::sums + n) * kWarp + lane];
    };
    if (split > 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        cell(split, i) = run.max[i];
        cell(split, 2 + i) = run.sum[i];
        cell(split, 4 + i) = run.kept[2 * i];
      }
#pragma unroll
      for (int n = 0; n < D / 2; ++n) cell(split, 6 + n) = run.out[n / 4][n % 4];
    }
    __syncthreads();
    if (split > 0) return;
    for (int of = 1; of < Tile::splits; ++of) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float split_max = cell(of, i), max_score = Max{}(run.max[i], split_max),
                    share = exp2_nonpositive((split_max - max_score) * scale);
        run.rescale(i, exp2_nonpositive((run.max[i] - max_score) * scale));
        run.max[i] = max_score;
        run.sum[i] += cell(of, 2 + i) * share;
        run.kept[2 * i] += cell(of, 4 + i) * share;
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
          run.out[n][2 * i] += cell(of, 6 + 4 * n + 2 * i) * share;
          run.out[n][2 * i + 1] += cell(of, 7 + 4 * n + 2 * i) * share;
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int l = 16 * band + g + 8 * i;
    if (tile.head(l, at) >= tile.heads || tile.row(l, at) >= tile.q_rows) continue;
    const bool valid = tile.row(l, at) < tile.rows;  // rows of padding become 0
    const float share = valid ? 1 / run.kept[2 * i] : 0.0f;
    const int64_t row = tile.of_q(l, at);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      const int column = 8 * n + 2 * t;
      if (column >= at.d) continue;
      const Pack<float, 2> y{valid ? run.out[n][2 * i] * share : 0.0f,
                             valid ? run.out[n][2 * i + 1] * share : 0.0f};
      store_pack(in.y + row * at.d + column, y);
    }
    if (t == 0) in.lse[row] = valid ? run.max[i] * in.scale + math::log(run.sum[i]) : 0.0f;
  }
}

// Whether the device has the room; if so, launched.
template <class S, int D, int Bands>
bool attend(const HalfOperands<S>& in, const BlockCall& call) {
  using Tile = HalfTile<S, D, Bands>;
  if (Tile::shared > max_shared()) return false;
  const BlockSizes at = call.sizes(Tile::lanes, true);
  launch("block_attention", attend_half_kernel<Tile, D>, at.grid(), dim3(Tile::threads),
         Tile::shared, in, at);
  return true;
}

template <class S, int D>
bool attend(const HalfOperands<S>& in, const BlockCall& call, int64_t lanes) {
  // Four warps that share a band need the most shared memory.
  if (lanes <= 16 && attend<S, D, 1>(in, call)) return true;
  if (lanes <= 32) return attend<S, D, 2>(in, call);
  if (lanes <= 64) return attend<S, D, 4>(in, call);
  if (lanes <= 96) return attend<S, D, 6>(in, call);
  return attend<S, D, 8>(in, call);
}

}  // namespace

bool block_attention_half(Tensor y, Tensor lse, Tensor q, Tensor k, Tensor v, const BlockCall& call,
                          int64_t lanes, double scale) {
  const int64_t d = q.dim(3);
  auto typed = [&]<class S>() {
    const HalfOperands<S> in{y.data<float>(), lse.data<float>(), q.data<S>(),
                             k.data<S>(),     v.data<S>(),       float(scale)};
    if (d > 128 || !packed_rows<S>(d, in.q, in.k, in.v)) return false;
    return d <= 64 ? attend<S, 64>(in, call, lanes) : attend<S, 128>(in, call, lanes);
  };
  return q.dtype() == Dtype::bf16 ? typed.template operator()<bf16>()
                                  : typed.template operator()<f16>();
}

}  // namespace brine::cuda
