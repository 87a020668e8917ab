// The choice of key blocks by one thread block, for the rows of a tile of a group (docs/method.md
// section 8): by the moments of blocks, then by the 4-bit copies of the keys of candidates.
//
// A lane is a row of a head. Scores of the lanes of a few heads at a time go to scratch memory of
// the thread block, [lanes, slots]. A slot is a block; slots are eights of neighbouring blocks, of
// which some row has one in its pool. So eight threads have the strands of a lane's sums
// (tensor/mask/blocks.h). Every rounding is that of the CPU.
#pragma once

#include <bit>
#include <cmath>
#include <limits>

#include "tensor/cuda/core/block_group.cuh"
#include "tensor/cuda/core/packs.cuh"
#include "tensor/cuda/core/tensor_cores.cuh"
#include "tensor/kernels/select.h"
#include "tensor/mask/blocks.h"

namespace brine::cuda {

constexpr int kMaxLevels = 26;  // of 2^25 blocks, the most that block_entry() numbers
constexpr int kChoiceLanes = 32, kChoiceSlots = 128;  // of a product
constexpr int kChoiceColumns = 32;                    // numbers of a row that it reads at once

using RowSet = unsigned long long;  // bit r: row r of the tile

// a b, rounded: a compiler may not make it a part of a fused multiply-add.
template <class T>
__device__ inline T rounded_product(T a, T b) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 4) {
    return __fmul_rn(a, b);
  } else {
    return __dmul_rn(a, b);
  }
#else
  volatile T product = a * b;
  return product;
#endif
}

// BlockScores on the device.
template <class T>
struct ChoiceInputs {
  const T *q = nullptr, *key_scale = nullptr, *steps = nullptr, *shares = nullptr;
  const uint8_t* codes = nullptr;
  const T* moments[kMaxLevels] = {};
  int64_t super_blocks[kMaxLevels] = {};  // of a group, by level
  int64_t blocks = 0, G = 1;              // blocks of a group that have codes, or shares
  int d = 0, half = 0;                    // half: bytes of the codes of a key
  T root = 0;
  bool words = false;  // codes can be read as words

  ChoiceInputs(const BlockScores& s, int64_t G) : G(G) {
    if (s.shares.defined()) {
      shares = s.shares.data<T>();
      blocks = s.shares.dim(3);
    } else if (s.keys.codes.defined()) {
      q = s.q.data<T>();
      key_scale = s.key_scale.data<T>();
      steps = s.keys.steps.data<T>();
      codes = s.keys.codes.data<uint8_t>();
      blocks = s.keys.codes.dim(2);
      d = int(s.q.dim(3));
      half = (d + 1) / 2;
      root = T(1.4426950408889634 / std::sqrt(double(d)));
      words = half % 4 == 0 && aligned(4, codes);
      const size_t levels = std::min(s.keys.moments.size(), size_t(kMaxLevels));
      for (size_t z = 0; z < levels; ++z) {
        moments[z] = s.keys.moments[z].data<T>();
        super_blocks[z] = s.keys.moments[z].dim(2);
      }
    }
  }
};

// Rows of a group that choose together: all are in block `block`.
struct ChoiceTile {
  int64_t bg, list, block, row;  // list of the mask; first row of the first head in q
  int count, r0;                 // rows that choose; the first one in its tile
  bool continues;                // the list has what earlier rows of the tile keep
};

// A mask, and where its tiles are.
struct ChoiceLists {
  int32_t *counts, *entries;
  RowSet* nan_count;
  int64_t capacity, tiles, groups, heads, rows, G;  // groups: B G; heads: of a group; rows of q
  const int32_t* numbers;                           // of the tiles; null: 0, 1, 2...
  const int64_t *lengths, *width;  // null: no padding; width null: whole tiles, else one row

  // The long tiles come first, so that thread blocks finish at similar times.
  __device__ ChoiceTile tile(int64_t item, const BlockConfig& config) const {
    const int64_t bg = item % groups, n = tiles - 1 - item / groups, R = config.tile, b = bg / G;
    const int64_t first = width ? width[b] - 1 : (numbers ? numbers[n] : n) * R;
    ChoiceTile out{.bg = bg,
                   .list = bg * tiles + n,
                   .block = first / config.block,
                   .row = bg * heads * rows + (width ? 0 : n * R),
                   .count = 1,
                   .r0 = 0,
                   .continues = false};
    if (width) {
      out.r0 = int(first % R);
      out.continues = out.r0 > 0;
    } else {
      const int64_t in = rows - n * R < R ? rows - n * R : R,
                    left = lengths ? lengths[b] - first : in;
      out.count = int(left < 0 ? 0 : (left < in ? left : in));
    }
    return out;
  }
};

// Numbers of scratch memory of a thread block.
struct ChoiceSizes {
  int64_t heads, R, batch, slots, queries;  // heads, and those of a batch; bytes of a rounded query

  ChoiceSizes(const BlockConfig& config, int64_t heads, int64_t R, int64_t blocks, int half)
      : heads(heads),
        R(R),
        batch(std::min(heads, std::max<int64_t>(1, kChoiceLanes / R))),
        slots(config.chosen > 0 ? (blocks + kStrands - 1) / kStrands * kStrands : 0),
        queries((half + 15) / 16 * 32) {}
  BRINE_HD int64_t lanes() const { return batch * R; }
  BRINE_HD int64_t floats() const { return queries ? (2 * lanes() + R) * slots : R * slots; }
  BRINE_HD int64_t row_sets() const { return 2 * slots; }
  BRINE_HD int64_t ints(int64_t blocks) const { return slots / kStrands + blocks + 1; }
  BRINE_HD int64_t bytes() const { return (lanes() + 15) / 16 * 16 * queries; }
};

template <class T>
struct ChoiceMemory {
  T* floats;
  RowSet* row_sets;
  int32_t* ints;
  int8_t* bytes;
  int64_t blocks;  // of a list
};

template <class T>
struct ChoiceShared {
  static constexpr int step = kChoiceColumns + kWide<T>;  // rows without conflicts of banks
  T rows[(kChoiceLanes + kChoiceSlots) * step];           // of a product: lanes, then slots
  T share[kMaxTileRows], scale[kMaxTileRows], half_sum[kMaxTileRows];  // by lane
};

// All threads make every call, and leave with a barrier.
template <class T>
class BlockChoice {
  using Key = OrderKey<T>;
  using Shared = ChoiceShared<T>;
  static constexpr int32_t kNoRow = int32_t(kMaxTileRows);
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr T kLowest = std::numeric_limits<T>::lowest();

 public:
  __device__ BlockChoice(const ChoiceInputs<T>& in, const BlockConfig& config,
                         const ChoiceSizes& sizes, const ChoiceMemory<T>& memory,
                         const ChoiceLists& to, const ChoiceTile& tile)
      : in_(in), config_(config), sizes_(sizes), to_(to), tile_(tile) {
    const int64_t at = blockIdx.x, scores = sizes.queries ? sizes.lanes() * sizes.slots : 0;
    x_ = memory.floats + at * sizes.floats();
    s_ = x_ + scores;
    sums_ = reinterpret_cast<Key*>(s_ + scores);
    pool_ = memory.row_sets + at * sizes.row_sets();
    taken_ = pool_ + sizes.slots;
    eights_ = memory.ints + at * sizes.ints(memory.blocks);
    first_row_ = eights_ + sizes.slots / kStrands;
    queries_ = memory.bytes + at * sizes.bytes();
  }

  // The list of the tile, ascending.
  __device__ void write() {
    const BlockGroup group;
    int32_t &count = to_.counts[tile_.list], *entries = to_.entries + tile_.list * to_.capacity;
    const int64_t end = tile_.count > 0 ? tile_.block + 1 : 0;
    if (config_.chosen == 0) return write_window(count, entries, end);
    group.each(end,
               [&](int64_t b) { first_row_[b] = config_.is_fixed(b, tile_.block) ? 0 : kNoRow; });
    group.each(tile_.continues ? count : 0, [&](int64_t e) {
      first_row_[entry_block(entries[e])] = int32_t(entry_row(entries[e]));
    });
    if (tile_.count > 0) choose();
    auto kept = [&](int64_t b) { return first_row_[b] < kNoRow; };
    const int64_t n = group.reduce(
        end, int64_t(0), [&](int64_t b) { return int64_t(kept(b)); }, Plus{});
    group.scan(end, kept, [&](int64_t b, bool yes, int64_t rank) {
      if (yes && rank < to_.capacity) entries[rank] = block_entry(b, first_row_[b]);
    });
    if (threadIdx.x == 0) count = int32_t(n < to_.capacity ? n : to_.capacity);
    __syncthreads();
  }

 private:
  __device__ static int thread() { return int(threadIdx.x); }
  __device__ static int warp() { return thread() / kWarp; }
  __device__ Shared& shared() const { return *dynamic_shared<Shared>(); }
  __device__ int slots() const { return eight_count_ * kStrands; }
  __device__ int64_t block_of(int slot) const {
    return int64_t(eights_[slot / kStrands]) * kStrands + slot % kStrands;
  }
  // The query of a lane; null if there is none.
  __device__ const T* query(int lane) const {
    const int R = int(sizes_.R), r = lane % R;
    if (lane >= lanes_ || r >= tile_.count) return nullptr;
    return in_.q + (tile_.row + (head_ + lane / R) * to_.rows + r) * in_.d;
  }
  // Whether a lane's row has block b in its pool.
  __device__ bool in_pool(int lane, int64_t b) const {
    return lane < lanes_ && (pool_[b] >> lane % int(sizes_.R) & 1) != 0;
  }

  // The fixed blocks alone, the same for all rows.
  __device__ void write_window(int32_t& count, int32_t* entries, int64_t end) const {
    const int64_t sinks = config_.sinks < end ? config_.sinks : end, from = end - 1 - config_.local,
                  local = from > sinks ? from : sinks;
    BlockGroup{}.each(sinks + end - local, [&](int64_t e) {
      entries[e] = block_entry(e < sinks ? e : local + e - sinks, 0);
    });
    if (thread() == 0) count = int32_t(sinks + end - local);
  }

  __device__ void choose() {
    const int64_t o = tile_.block, free = config_.free_blocks(o);
    if (config_.chosen == 0 || free == 0) return;
    auto keep = [&](int r, int64_t b) { atomicMin(first_row_ + b, int32_t(tile_.r0 + r)); };
    auto is_free = [&](int64_t b) { return !config_.is_fixed(b, o); };
    if (free <= config_.chosen) {
      return BlockGroup{}.each(o, [&](int64_t b) {
        if (is_free(b)) keep(0, b);
      });
    }
    const RowSet all = ~RowSet(0) >> (64 - tile_.count);
    auto whole = [&](int64_t) { return all; };
    auto take_row = [&](int r, int64_t b) { atomicOr(taken_ + b, RowSet(1) << r); };
    if (in_.shares) {
      set_pool(o, whole);
      add_shares();
    } else {
      const int z = config_.level(o);
      if (free > config_.candidates && o >> z > config_.candidates && z > 0) {
        set_pool(o >> z, whole);
        first_pass(z);
        take(
            config_.candidates, [](int64_t) { return true; }, take_row);
        set_pool(o,
                 [&](int64_t b) { return !is_free(b) || b >> z == o >> z ? all : taken_[b >> z]; });
      } else {
        set_pool(o, whole);
      }
      if (free > config_.candidates) {
        first_pass(0);
        take(config_.candidates, is_free, take_row);
        set_pool(o, [&](int64_t b) { return is_free(b) ? taken_[b] : all; });
      }
      second_pass();
      if (nans_ > 0) atomicAdd(to_.nan_count, nans_);
    }
    take(config_.chosen, is_free, keep);
  }

  // pool_ [n] = f(block), their slots, and no block taken.
  template <class F>
  __device__ void set_pool(int64_t n, F f) {
    const BlockGroup group;
    const int64_t eights = (n + kStrands - 1) / kStrands;
    group.each(eights * kStrands, [&](int64_t b) { pool_[b] = b < n ? f(b) : 0; });
    group.each(n, [&](int64_t b) { taken_[b] = 0; });
    auto any = [&](int64_t e) {
      RowSet rows = 0;
      for (int i = 0; i < kStrands; ++i) rows |= pool_[e * kStrands + i];
      return rows != 0;
    };
    eight_count_ = int(group.reduce(
        eights, int64_t(0), [&](int64_t e) { return int64_t(any(e)); }, Plus{}));
    group.scan(eights, any, [&](int64_t e, bool yes, int64_t rank) {
      if (yes) eights_[rank] = int32_t(e);
    });
  }

  // f() for every batch of heads.
  template <class F>
  __device__ void each_batch(F f) {
    for (head_ = 0; head_ < sizes_.heads; head_ += sizes_.batch) {
      const int64_t left = sizes_.heads - head_;
      lanes_ = int((left < sizes_.batch ? left : sizes_.batch) * sizes_.R);
      f();
      add_heads();
    }
  }
  __device__ void first_pass(int z) {
    each_batch([&] {
      multiply(z, 2 * in_.d);
      soften(false);
    });
  }
  __device__ void second_pass() {
    each_batch([&] {
      round_queries();
      multiply(0, in_.d);
      score_keys();
      soften(true);
    });
  }

  // x [lanes, slots] = (the first `width` numbers of [q', |q'|], q' = root q) . the same of moments
  // of level z, one chain of fused multiply-adds for each.
  __noinline__ __device__ void multiply(int z, int width) const {
    constexpr int n = kWide<T>, step = Shared::step, mine = kChoiceLanes / kWarps,
                  blocks = kChoiceSlots / kWarp;
    const int d = in_.d, slot_count = slots();
    const T* moments = in_.moments[z] + tile_.bg * in_.super_blocks[z] * 2 * d;
    T* rows = shared().rows;
    for (int l0 = 0; l0 < lanes_; l0 += kChoiceLanes) {
      for (int s0 = 0; s0 < slot_count; s0 += kChoiceSlots) {
        T sums[mine][blocks] = {};
        for (int w = 0; w < width; w += kChoiceColumns) {
          __syncthreads();
          for (int r = warp(); r < kChoiceLanes + kChoiceSlots; r += kWarps) {
            const int c = w + thread() % kWarp;
            rows[r * step + thread() % kWarp] =
                c >= width         ? T(0)
                : r < kChoiceLanes ? query_number(l0 + r, c)
                                   : moment(moments, s0 + r - kChoiceLanes, slot_count, c);
          }
          __syncthreads();
#pragma unroll 2
          for (int c = 0; c < kChoiceColumns; c += n) {
            Pack<T, n> left[mine];
#pragma unroll
            for (int i = 0; i < mine; ++i) {
              left[i] = load_pack<n>(rows + (warp() + i * kWarps) * step + c);
            }
#pragma unroll
            for (int j = 0; j < blocks; ++j) {
              const int slot = kChoiceLanes + thread() % kWarp + j * kWarp;
              const Pack<T, n> right = load_pack<n>(rows + slot * step + c);
#pragma unroll
              for (int i = 0; i < mine; ++i) {
#pragma unroll
                for (int e = 0; e < n; ++e) {
                  sums[i][j] = std::fma(left[i].v[e], right.v[e], sums[i][j]);
                }
              }
            }
          }
        }
#pragma unroll
        for (int i = 0; i < mine; ++i) {
          const int lane = l0 + warp() + i * kWarps;
#pragma unroll
          for (int j = 0; j < blocks; ++j) {
            const int slot = s0 + thread() % kWarp + j * kWarp;
            if (lane < lanes_ && slot < slot_count) {
              x_[lane * sizes_.slots + slot] = sums[i][j];
            }
          }
        }
      }
    }
    __syncthreads();
  }
  __device__ T query_number(int lane, int c) const {
    const T* q = query(lane);
    return !q ? T(0) : c < in_.d ? q[c] * in_.root : std::fabs(q[c - in_.d] * in_.root);
  }
  __device__ T moment(const T* moments, int slot, int slot_count, int c) const {
    if (slot >= slot_count) return 0;
    const int64_t b = block_of(slot);
    return pool_[b] ? moments[b * 2 * in_.d + c] : T(0);
  }

  // Queries times key_scale in 8 bits, by warps: queries_ [lanes, bytes], 32 bytes for 16 of the
  // codes of a key: those of their lower halves, then those of the higher ones; 0 beyond d.
  __device__ void round_queries() const {
    const int bytes = int(sizes_.queries), lane_count = (lanes_ + 15) / 16 * 16;
    const T* key_scale = in_.key_scale + tile_.bg % in_.G * in_.d;
    for (int lane = warp(); lane < lane_count; lane += kWarps) {
      const T* q = query(lane);
      auto weight = [&](int c) { return q[c] * in_.root * key_scale[c]; };
      T largest = 0;
      for (int c = thread() % kWarp; q && c < in_.d; c += kWarp) {
        largest = Max{}(std::fabs(weight(c)), largest);
      }
      const T scale = warp_max(largest) / T(127);
      int sum = 0;
      for (int i = thread() % kWarp; i < bytes; i += kWarp) {
        const int byte = i / 32 * 16 + i % 16, c = i % 32 < 16 ? byte : in_.half + byte;
        T u = 0;
        if (q && byte < in_.half && c < in_.d && scale > 0) u = std::rint(weight(c) / scale);
        const int code = std::fabs(u) <= 127 ? int(u) : 0;
        queries_[lane * bytes + i] = int8_t(code);
        sum += code;
      }
      sum = warp_sum(sum);
      if (thread() % kWarp == 0) {
        shared().scale[lane] = scale;
        shared().half_sum[lane] = T(7.5) * T(sum);
      }
    }
    __syncthreads();
  }

  // s = the sums of the powers of the scores of a block's keys over the largest of them, x = that;
  // x is q' . m before. A warp for 16 lanes and a block.
  __noinline__ __device__ void score_keys() const {
    const int tiles = (lanes_ + 15) / 16, g = thread() % kWarp / 4, t = thread() % 4;
    const int block = int(config_.block), items = tiles * slots();
    for (int item = warp(); item < items; item += kWarps) {
      const int slot = item / tiles, l0 = item % tiles * 16;
      const int64_t b = block_of(slot);
      const bool wanted[2] = {in_pool(l0 + g, b), in_pool(l0 + g + 8, b)};
      if (!__any_sync(kAllLanes, wanted[0] || wanted[1])) continue;
      T y[4][4], a[4][2], largest[2] = {kLowest, kLowest}, strands[2][2] = {};
      for (int first = 0; first < block; first += 32) {
        multiply_keys(y, a, l0, b, first);
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          if (first + i / 4 * 8 + 2 * t + i % 2 >= block) continue;
          largest[i / 2 % 2] =
              Max{}(rounded_product(y[i / 4][i % 4], a[i / 4][i % 2]), largest[i / 2 % 2]);
        }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        for (int by = 1; by < 4; by *= 2)
          largest[r] = Max{}(largest[r], __shfl_xor_sync(kAllLanes, largest[r], by));
      }
      for (int first = 0; first < block; first += 32) {
        if (block > 32) multiply_keys(y, a, l0, b, first);
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          if (first + i / 4 * 8 + 2 * t + i % 2 >= block) continue;
          const int r = i / 2 % 2;
          const T below = rounded_product(y[i / 4][i % 4], a[i / 4][i % 2]) - largest[r];
          strands[r][i % 2] += math::exp2_nonpositive(below * shared().scale[l0 + g + 8 * r]);
        }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        T sum = strands[r][0] + strands[r][1];
        for (int by = 1; by < 4; by *= 2) sum += __shfl_xor_sync(kAllLanes, sum, by);
        if (t != 0 || !wanted[r]) continue;
        const int lane = l0 + g + 8 * r;
        const int64_t at = lane * sizes_.slots + slot;
        x_[at] = std::fma(largest[r], shared().scale[lane], x_[at]);
        s_[at] = sum;
      }
    }
    __syncthreads();
  }

  // y[n] a[n] = the scores of keys first + 8 n + 2 t + {0, 1} of block b for lanes l0 + g and
  // l0 + g + 8, in units of a lane's scale.
  __device__ void multiply_keys(T (&y)[4][4], T (&a)[4][2], int l0, int64_t b, int first) const {
    const int g = thread() % kWarp / 4, t = thread() % 4, block = int(config_.block);
    const int64_t key0 = (tile_.bg * in_.blocks + b) * block;
    const int bytes = int(sizes_.queries);
    int32_t sums[4][4] = {};
    for (int s = 0; s < bytes; s += 32) {
      uint32_t u[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int8_t* row = queries_ + (l0 + g + i % 2 * 8) * bytes + s;
        u[i] = *reinterpret_cast<const uint32_t*>(row + i / 2 * 16 + 4 * t);
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int key = first + 8 * n + g;
        const uint32_t word = code_word(key0 + (key < block ? key : block - 1), s / 2 + 4 * t);
        const uint32_t z[2] = {word & 0x0f0f0f0fu, word >> 4 & 0x0f0f0f0fu};
        multiply_add(sums[n], u, z);
      }
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int key = first + i / 4 * 8 + 2 * t + i % 2;
      a[i / 4][i % 2] = in_.steps[key0 + (key < block ? key : block - 1)];
      y[i / 4][i % 4] = T(sums[i / 4][i % 4]) - shared().half_sum[l0 + g + i / 2 % 2 * 8];
    }
  }
  // Four bytes of a key's codes, 0 after the last.
  __device__ uint32_t code_word(int64_t key, int byte) const {
    const uint8_t* codes = in_.codes + key * in_.half + byte;
    if (in_.words) return byte < in_.half ? *reinterpret_cast<const uint32_t*>(codes) : 0;
    uint32_t word = 0;
    for (int i = 0; i < 4; ++i) {
      if (byte + i < in_.half) word |= uint32_t(codes[i]) << 8 * i;
    }
    return word;
  }

  // Scores x of the pool of every lane -> powers of two, times s if `weighted`; 0 outside of it.
  // share = one over their sum. Eight threads for a lane.
  __noinline__ __device__ void soften(bool weighted) {
    const int strand = thread() % kStrands, lane_count = (lanes_ + 3) / 4 * 4;
    for (int lane = thread() / kStrands; lane < lane_count; lane += kThreads / kStrands) {
      T *x = x_ + lane * sizes_.slots, largest = kLowest, sum = 0;
      for (int slot = strand; slot < slots(); slot += kStrands) {
        if (in_pool(lane, block_of(slot))) largest = Max{}(x[slot], largest);
      }
      for (int by = 1; by < kStrands; by *= 2)
        largest = Max{}(largest, __shfl_xor_sync(kAllLanes, largest, by));
      for (int slot = strand; slot < slots() && lane < lanes_; slot += kStrands) {
        T e = 0;
        if (in_pool(lane, block_of(slot))) {
          e = math::exp2_nonpositive(x[slot] - largest);
          if (weighted) e = rounded_product(s_[lane * sizes_.slots + slot], e);
        }
        x[slot] = e;
        sum += e;
      }
      for (int by = 1; by < kStrands; by *= 2) sum += __shfl_xor_sync(kAllLanes, sum, by);
      if (strand > 0 || !query(lane)) continue;
      shared().share[lane] = sum > 0 ? 1 / sum : T(0);
      nans_ += !(sum > 0 && sum < std::numeric_limits<T>::infinity());
    }
    __syncthreads();
  }

  // f(row, slot) of the tile's rows.
  template <class F>
  __device__ void each_sum(F f) const {
    for (int r = warp(); r < tile_.count; r += kWarps) {
      for (int slot = thread() % kWarp; slot < slots(); slot += kWarp) f(r, slot);
    }
    __syncthreads();
  }
  // sums [R, slots] += the shares of the batch, by head.
  __device__ void add_heads() const {
    each_sum([&](int r, int slot) {
      Key& to = sums_[r * sizes_.slots + slot];
      T sum = head_ == 0 ? T(0) : std::bit_cast<T>(to);
      for (int lane = r; lane < lanes_; lane += int(sizes_.R))
        sum += rounded_product(x_[lane * sizes_.slots + slot], shared().share[lane]);
      to = std::bit_cast<Key>(sum);
    });
  }
  __device__ void add_shares() const {
    each_sum([&](int r, int slot) {
      const int64_t b = block_of(slot);
      T sum = 0;
      for (int64_t h = 0; h < sizes_.heads && pool_[b]; ++h)
        sum += in_.shares[(tile_.row + h * to_.rows + r) * in_.blocks + b];
      sums_[r * sizes_.slots + slot] = std::bit_cast<Key>(sum);
    });
  }

  // put(row, block) for the `k` largest sums of every row's pool that `may` allows, of equal ones
  // the later. A warp has a row. The sums are overwritten.
  template <class May, class Put>
  __device__ void take(int64_t k, May may, Put put) const {
    const WarpGroup group;
    for (int r = warp(); r < tile_.count; r += kWarps) {
      Key* keys = sums_ + r * sizes_.slots;
      const int64_t n = group.reduce(
          slots(), int64_t(0),
          [&](int64_t slot) {
            const int64_t b = block_of(int(slot));
            const bool yes = (pool_[b] >> r & 1) != 0 && may(b);
            keys[slot] = yes ? order_key(std::bit_cast<T>(keys[slot])) : Key(0);
            return int64_t(yes);
          },
          Plus{});
      group.sync();
      select_largest(group, keys, int64_t(slots()), k < n ? k : n, [&](int64_t slot, bool chosen) {
        if (chosen) put(r, block_of(int(slot)));
      });
    }
    __syncthreads();
  }

  const ChoiceInputs<T>& in_;
  const BlockConfig& config_;
  const ChoiceSizes& sizes_;
  const ChoiceLists& to_;
  const ChoiceTile& tile_;
  T *x_, *s_;                     // [lanes, slots]
  Key* sums_;                     // [R, slots] bits of sums over heads, then keys of their order
  RowSet *pool_, *taken_;         // of blocks
  int32_t *eights_, *first_row_;  // of the slots; of the blocks of the list
  int8_t* queries_;
  int64_t head_ = 0;  // the first of the batch
  int lanes_ = 0, eight_count_ = 0;
  RowSet nans_ = 0;  // of the thread
};

}  // namespace brine::cuda
