// The choice of key blocks by one thread block, for the rows of a tile of a group: scores of the
// mean keys of parts of blocks and of the learned prior, softmax over all parts, sums over the
// parts and the heads, the largest of each row, the union.
//
// Products are by tiles in shared memory, whose lanes are the rows of all heads: lane h R + r is
// row r of head h. Of the parts of a block the logarithm of the sum of their exponentials is kept:
// softmax over blocks of it is the sum over parts of softmax over all parts. The rest is a warp for
// each lane or row, in scratch memory of the thread block. Products are in the type of the scores,
// since TF32 would flip choices.
#pragma once

#include "tensor/cuda/blocks/choice_jobs.cuh"
#include "tensor/cuda/blocks/choice_tile.cuh"
#include "tensor/cuda/core/block_group.cuh"
#include "tensor/kernels/select.h"

namespace brine::cuda {

// exp(x) for x <= 0 and log(x) for x > 0 of sums over parts, relative error 2^-21.
__device__ inline float exp_of_part(float x) { return exp2_nonpositive(x * kLog2OfE); }
__device__ inline double exp_of_part(double x) { return std::exp(x); }

// log(sum of exp) of the scores of n parts, products[p step] factor + logs[p], and of `before` if
// there are more before them.
template <class T>
__device__ inline T fold_parts(const T* products, const T* logs, int n, int step, T factor,
                               bool more, const T& before) {
  auto score = [&](int p) { return products[p * step] * factor + logs[p]; };
  if (n == 1 && !more) return score(0);
  T max_score = score(0);
  for (int p = 1; p < n; ++p) max_score = Max{}(max_score, score(p));
  if (more) max_score = Max{}(max_score, before);
  T sum = more ? exp_of_part(before - max_score) : T(0);
  for (int p = 0; p < n; ++p) sum += exp_of_part(score(p) - max_score);
  return max_score + math::log(sum);
}

// Numbers of scratch memory of a thread block: for C candidates at once and S super-blocks.
struct ChoiceSizes {
  int64_t lanes, R, m, C, S, P, blocks;
  bool opinion;

  ChoiceSizes(const BlockConfig& config, int64_t heads, int64_t R, int64_t m, int64_t blocks,
              bool shares)
      : lanes(heads * R),
        R(R),
        m(m),
        C(blocks),
        S(1),
        P(shares ? 1 : config.parts),
        blocks(blocks),
        opinion(config.opinion > 0) {
    const int z = config.level(blocks);
    if (shares || z == 0) return;
    const int64_t narrowed =
        ((R * config.survivors * config.chosen + 1) << z) + config.sinks + config.local;
    C = std::min(blocks, std::max(config.columns, narrowed));
    S = config.columns + 1;
  }
  BRINE_HD int64_t floats() const {
    return lanes * C * ((opinion ? 2 : 1) + (m ? 1 : 0)) + R * C + 3 * lanes + R * m;
  }
  BRINE_HD int64_t ints() const { return C + blocks + 1; }
  BRINE_HD int64_t bytes() const { return R * C + (R + 1) * S; }
  int64_t all_bytes(size_t number) const {
    return floats() * int64_t(number) + ints() * int64_t(sizeof(int32_t)) + bytes();
  }
};

template <class T>
struct ChoiceMemory {
  T* floats;
  int32_t* ints;
  uint8_t* bytes;
};

// The scratch memory of one thread block.
template <class T>
struct ChoiceRoom {
  T *s, *raw;                    // [lanes, C] scores, then exponentials; the same of the opinion
  T* x;                          // [lanes, C] products of features
  OrderKey<T>* keys;             // [R, C] of the sums of probabilities; 0: may not be chosen
  T *total, *share, *raw_share;  // [lanes] of features; 1 / sum of s, of raw
  T* open;                       // [R, m] sums of features of the block of a row
  int32_t *list, *first_row;     // [C] candidates; [blocks + 1] of the union
  uint8_t *allowed, *survives;   // [R, C]; [R + 1, S], the last row: for any
  int64_t C, S, P;

  __device__ ChoiceRoom(const ChoiceSizes& n, const ChoiceMemory<T>& memory, int64_t slot)
      : C(n.C), S(n.S), P(n.P) {
    T* at = memory.floats + slot * n.floats();
    auto take = [&](int64_t count) {
      T* from = at;
      at += count;
      return from;
    };
    s = take(n.lanes * C);
    raw = take(n.opinion ? n.lanes * C : 0);
    x = take(n.m ? n.lanes * C : 0);
    keys = reinterpret_cast<OrderKey<T>*>(take(n.R * C));
    total = take(n.lanes);
    share = take(n.lanes);
    raw_share = take(n.lanes);
    open = take(n.R * n.m);
    list = memory.ints + slot * n.ints();
    first_row = list + C;
    allowed = memory.bytes + slot * n.bytes();
    survives = allowed + n.R * C;
  }
};

// All threads make every call, and leave with a barrier.
template <class Layout>
class BlockChoice {
  using T = typename Layout::T;
  using Inputs = ChoiceInputs<T, T>;
  using Shared = ChoiceShared<Layout>;
  static constexpr int32_t kNoRow = int32_t(kMostTileRows);
  static constexpr int kWarps = Layout::threads / kWarp;

 public:
  // `shared`: Shared::bytes of shared memory.
  __device__ BlockChoice(const Inputs& in, const BlockConfig& config, const ChoiceRoom<T>& room,
                         const ChoiceJob& job, unsigned char* shared)
      : in_(in), config_(config), room_(room), job_(job), shared_(shared) {}

  // The list of the job's tile, ascending.
  __device__ void write(int32_t& count, int32_t* entries, int64_t capacity) {
    const BlockGroup group;
    if (job_.count > 0) {
      begin_union(entries, job_.continues ? count : 0);
      choose();
    }
    const int64_t end = job_.count > 0 ? job_.block + 1 : 0;
    auto kept = [&](int64_t b) { return room_.first_row[b] < kNoRow; };
    const int64_t n = group.reduce(
        end, int64_t(0), [&](int64_t b) { return int64_t(kept(b)); }, Plus{});
    group.scan(end, kept, [&](int64_t b, bool yes, int64_t rank) {
      if (yes && rank < capacity) entries[rank] = block_entry(b, room_.first_row[b]);
    });
    if (threadIdx.x == 0) count = int32_t(n < capacity ? n : capacity);
    __syncthreads();
  }

 private:
  __device__ int lanes() const { return job_.heads * job_.R; }
  __device__ int64_t q_row(int lane) const {
    return job_.row + lane / job_.R * job_.head_rows + lane % job_.R;
  }
  __device__ bool has_row(int lane) const { return lane < lanes() && lane % job_.R < job_.count; }

  // The block of a candidate: all blocks of a level are, or those of a list.
  __device__ int64_t candidate(int64_t c) const { return narrowed_ ? room_.list[c] : c; }
  __device__ bool is_allowed(int r, int64_t c) const {
    return !narrowed_ || room_.allowed[r * room_.C + c];
  }
  // f(row, candidate) of all, neighbouring threads for neighbouring candidates.
  template <class F>
  __device__ void each_candidate(F&& f) const {
    for (int r = int(threadIdx.x) / kWarp; r < job_.count; r += kWarps) {
      for (int64_t c = int(threadIdx.x) % kWarp; c < candidates_; c += kWarp) f(r, c);
    }
    __syncthreads();
  }

  __noinline__ __device__ void begin_union(const int32_t* entries, int64_t count) {
    const BlockGroup group;
    group.each(job_.block + 1, [&](int64_t b) {
      room_.first_row[b] = config_.is_fixed(b, job_.block) ? 0 : kNoRow;
    });
    group.each(count, [&](int64_t e) {
      atomicMin(room_.first_row + entry_block(entries[e]), int32_t(entry_row(entries[e])));
    });
  }

  __device__ void choose() {
    int z = in_.shares ? 0 : config_.level(job_.block);
    candidates_ = job_.block >> z;
    if (candidates_ == 0) return;
    if (in_.shares) {
      add_given();
    } else {
      if (in_.m) add_open();
      for (bool first = true;; first = false) {
        score(z, first);
        if (z == 0) break;
        take_survivors();
        narrow(z);
        z = 0;
      }
    }
    take(config_.chosen, [&](int r, int64_t c) {
      atomicMin(room_.first_row + candidate(c), int32_t(job_.r0 + r));
    });
  }

  // put(row of the tile, lane, block, part, n, s) for every lane and candidate: s[p step], p < n,
  // are the products of its row of x with the rows of the candidate's parts from `part` on. A block
  // has 2^shift slots, at least as many as parts; if they are more than those of a tile, it comes
  // several times, to the same thread. begin(l0) before the lanes from l0 on.
  template <class Begin, class Put>
  __device__ void multiply(const T* x, const LevelRows<T>& of_parts, int z, int parts, Begin begin,
                           Put put) const {
    T *x_tile = reinterpret_cast<T*>(shared_), *first = x_tile + Layout::rows * Layout::step;
    T* products = reinterpret_cast<T*>(shared_ + Shared::tiles);
    int shift = 0;
    while (1 << shift < parts) ++shift;
    const T* from = of_parts.of(z, job_.bg);
    const int width = int(of_parts.width), count = int(candidates_ << shift);
    constexpr int slots = Layout::slots;
    const int part_bits = 1 << shift < slots ? shift : log2_of(slots);
    const int block_bits = log2_of(slots) - part_bits, blocks = 1 << block_bits;  // of a tile
    const bool packed =
        (reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(from) | width * sizeof(T)) %
            16 ==
        0;
    auto load_x = [&](int l0, int w) {
      load_choice_rows<Layout, Layout::rows>(
          x_tile, [&](int r) { return has_row(l0 + r) ? x + q_row(l0 + r) * width + w : nullptr; },
          width - w, packed);
    };
    auto load = [&](int c0, int w, int turn) {
      load_choice_rows<Layout, slots>(
          first + turn * slots * Layout::step,
          [&](int r) -> const T* {
            const int c = c0 + r, part = c & ((1 << shift) - 1);
            if (c >= count || part >= parts) return nullptr;
            return from + (candidate(c >> shift) * parts + part) * width + w;
          },
          width - w, packed);
      end_copies();
    };
    for (int l0 = 0; l0 < lanes(); l0 += Layout::rows) {
      __syncthreads();
      begin(l0);
      if (width <= kChoiceColumns) {
        load_x(l0, 0);
        load(0, 0, 0);
      }
      for (int c0 = 0, turn = 0; c0 < count; c0 += slots, turn ^= 1) {
        typename Layout::Sums s;
        if (width <= kChoiceColumns) {  // the next rows come while these are multiplied
          if (c0 + slots < count) {
            load(c0 + slots, 0, turn ^ 1);
            wait_copies<1>();
          } else {
            wait_copies<0>();
          }
          __syncthreads();
          Layout::add(s, x_tile, first + turn * slots * Layout::step, width);
        } else {
          for (int w = 0; w < width; w += kChoiceColumns) {
            __syncthreads();
            load_x(l0, w);
            load(c0, w, 0);
            wait_copies<0>();
            __syncthreads();
            Layout::add(s, x_tile, first, width - w < kChoiceColumns ? width - w : kChoiceColumns);
          }
        }
        // Parts apart, so that neighbouring threads read neighbouring blocks.
        Layout::each(s, [&](int row, int slot, T value) {
          const int part = slot & ((1 << part_bits) - 1), block = slot >> part_bits;
          products[row * Shared::product_step + (part << block_bits) + block] = value;
        });
        __syncthreads();
        const int part = c0 & ((1 << shift) - 1), left = parts - part;
        const int tile_parts = left < 1 << part_bits ? left : 1 << part_bits;
        for (int i = threadIdx.x; i < Layout::rows << block_bits; i += Layout::threads) {
          const int r = i >> block_bits, b = i & (blocks - 1), block = (c0 >> shift) + b;
          if (block < candidates_ && tile_parts > 0) {
            put(r, l0 + r, block, part, tile_parts, products + r * Shared::product_step + b,
                blocks);
          }
        }
      }
    }
    __syncthreads();
  }

  __device__ static constexpr int log2_of(int n) { return n < 2 ? 0 : 1 + log2_of(n / 2); }

  // s [lanes, C] = log(sum of exp) of the scores of each candidate's parts, raw those of the
  // opinion.
  __noinline__ __device__ void score_parts(int z) const {
    const int parts = int(room_.P);
    const double root = 1 / std::sqrt(double(in_.d));
    const T plain = T(root);
    const T* logs = in_.logs.of(z, job_.bg);
    const int64_t head = job_.bg * job_.heads % in_.H;
    const bool opinion = config_.opinion > 0;
    // Of each lane of a tile; that of a lane without a row is not a number.
    T* factors = reinterpret_cast<T*>(shared_ + Shared::bytes) - Layout::rows;
    multiply(
        in_.q, in_.keys, z, parts,
        [&](int l0) {
          for (int r = threadIdx.x; r < Layout::rows; r += Layout::threads) {
            factors[r] = has_row(l0 + r) ? T(double(in_.gain[head + (l0 + r) / job_.R]) * root)
                                         : std::numeric_limits<T>::quiet_NaN();
          }
        },
        [&](int r, int lane, int block, int part, int n, const T* products, int step) {
          const T factor = factors[r];
          if (factor != factor) return;
          if (narrowed_ && !is_allowed(lane % job_.R, block)) return;
          const int64_t at = lane * room_.C + block;
          const T* log = logs + candidate(block) * parts + part;
          room_.s[at] = fold_parts(products, log, n, step, factor, part > 0, room_.s[at]);
          if (opinion)
            room_.raw[at] = fold_parts(products, log, n, step, plain, part > 0, room_.raw[at]);
        });
  }

  // open [R, m] = sums of the features of the keys of its block that a row sees.
  __device__ void add_open() const {
    BlockGroup{}.each(in_.m, [&](int64_t i) {
      double sum = 0;
      if (in_.psi_open) {
        room_.open[i] = T(in_.psi_open[job_.bg * in_.m + i]);
        return;
      }
      const T* psi = in_.psi_k + job_.bg * in_.T_keys * in_.m + i;
      for (int64_t t = job_.block * config_.block; t < job_.first + job_.count; ++t) {
        sum += double(psi[t * in_.m]);
        if (t >= job_.first) room_.open[(t - job_.first) * in_.m + i] = T(sum);
      }
    });
  }

  // The product of a lane's features with those of all keys that its row sees, by its warp.
  __device__ T total_of(int lane, int z) const {
    const WarpGroup group;
    const T *x = room_.x + lane * room_.C, *psi = in_.psi_q + q_row(lane) * in_.m;
    T total = group.reduce(
        candidates_, T(0), [&](int64_t c) { return x[c]; }, Plus{});
    auto add = [&](const T* sums) {
      total += group.reduce(
          in_.m, T(0), [&](int64_t i) { return psi[i] * sums[i]; }, Plus{});
    };
    for (int64_t b = job_.block >> z << z; b < job_.block; ++b) {
      add(in_.features.of(0, job_.bg) + b * in_.m);
    }
    add(room_.open + lane % job_.R * in_.m);
    return total > 0 ? total : T(1);
  }

  // keys [R, C] from the scores of the candidates at a level; `first`: no total is known yet.
  __device__ void score(int z, bool first) {
    if (!first || !job_.scored) score_parts(z);
    if (in_.m) {
      multiply(
          in_.psi_q, in_.features, z, 1, [](int) {},
          [&](int, int lane, int block, int, int, const T* products, int) {
            if (has_row(lane)) room_.x[lane * room_.C + block] = products[0];
          });
    }
    const bool opinion = config_.opinion > 0;
    for (int lane = int(threadIdx.x) / kWarp; lane < lanes(); lane += kWarps) {
      if (lane % job_.R >= job_.count) continue;
      if (in_.m && first) {
        const T total = total_of(lane, z);
        if (threadIdx.x % kWarp == 0) room_.total[lane] = total;
        __syncwarp();
      }
      if (in_.m) add_prior(lane, z);
      soften(room_.s, room_.share, lane);
      if (opinion) soften(room_.raw, room_.raw_share, lane);
    }
    __syncthreads();
    const bool last = z == 0;
    const T given = T(config_.opinion), rest = T(1 - config_.opinion);
    each_candidate([&](int r, int64_t c) {
      T sum = 0;
      for (int h = 0; h < job_.heads; ++h) {
        const int64_t lane = h * job_.R + r, at = lane * room_.C + c;
        const T probability = room_.s[at] * room_.share[lane];
        sum += opinion ? rest * probability + given * (room_.raw[at] * room_.raw_share[lane])
                       : probability;
      }
      set_key(r, c, sum, last);
    });
  }

  __device__ void set_key(int r, int64_t c, T sum, bool last) const {
    const bool may = is_allowed(r, c) && !(last && config_.is_fixed(candidate(c), job_.block));
    room_.keys[r * room_.C + c] = may ? order_key(sum) : OrderKey<T>(0);
  }

  // The prior of a lane's candidates is added to the scores.
  __device__ void add_prior(int lane, int z) const {
    const int64_t head = job_.bg * job_.heads % in_.H + lane / job_.R;
    const T keys = T(double(job_.first + lane % job_.R + 1) / double(config_.block)) *
                   T(1.0 / double(int64_t(1) << z));
    T* s = room_.s + lane * room_.C;
    const T* x = room_.x + lane * room_.C;
    WarpGroup{}.each(candidates_, [&](int64_t c) {
      const T share = x[c] / room_.total[lane];
      s[c] += in_.prior_gain[head] * math::log((share < in_.least ? in_.least : share) * keys +
                                               std::numeric_limits<T>::min());
    });
  }

  // Scores [candidates] of a lane -> exponentials of those that its row may choose from, and one
  // over their sum.
  __noinline__ __device__ void soften(T* scores, T* shares, int lane) const {
    const WarpGroup group;
    T* s = scores + lane * room_.C;
    const int r = lane % int(job_.R);
    constexpr T kLowest = std::numeric_limits<T>::lowest();
    const T max_score = group.reduce(
        candidates_, kLowest, [&](int64_t c) { return is_allowed(r, c) ? s[c] : kLowest; }, Max{});
    const T norm = group.reduce(
        candidates_, T(0),
        [&](int64_t c) {
          const T e = is_allowed(r, c) ? exp_of_part(s[c] - max_score) : T(0);
          s[c] = e;
          return e;
        },
        Plus{});
    if (threadIdx.x % kWarp == 0) shares[lane] = norm > 0 ? 1 / norm : T(0);
    __syncwarp();
  }

  __device__ void add_given() const {
    each_candidate([&](int r, int64_t c) {
      T sum = 0;
      for (int h = 0; h < job_.heads; ++h) {
        sum += in_.shares[q_row(h * job_.R + r) * in_.blocks + c];
      }
      set_key(r, c, sum, true);
    });
  }

  // put(row, candidate) for the `k` largest of every row, of equal ones the later.
  template <class Put>
  __noinline__ __device__ void take(int64_t k, Put put) const {
    const WarpGroup group;
    for (int r = int(threadIdx.x) / kWarp; r < job_.count; r += kWarps) {
      OrderKey<T>* keys = room_.keys + r * room_.C;
      if constexpr (sizeof(T) == 4) {
        if (candidates_ <= 4 * kWarp) {
          take_few_of<4>(r, k, put);
          continue;
        }
        if (candidates_ <= 16 * kWarp) {
          take_few_of<16>(r, k, put);
          continue;
        }
        if (candidates_ <= 32 * kWarp) {
          take_few_of<32>(r, k, put);
          continue;
        }
      }
      const int64_t may = group.reduce(
          candidates_, int64_t(0), [&](int64_t c) { return int64_t(keys[c] != 0); }, Plus{});
      each_largest(group, keys, candidates_, k < may ? k : may,
                   [&](int64_t, int64_t c) { put(r, c); });
    }
    __syncthreads();
  }

  template <int kPerLane, class Put>
  __device__ void take_few_of(int r, int64_t k, Put put) const {
    uint32_t key[kPerLane];
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      const int c = int(threadIdx.x) % kWarp + j * kWarp;
      key[j] = c < candidates_ ? room_.keys[r * room_.C + c] : 0;
    }
    const int lane = int(threadIdx.x) % kWarp;
    take_few(key, k, [&](int j, uint32_t lanes) {
      if ((lanes >> lane & 1) != 0) put(r, lane + j * kWarp);
    });
  }

  // survives [r, super-block], the incomplete one for every row.
  __noinline__ __device__ void take_survivors() const {
    const int64_t S = room_.S, whole = candidates_;
    for (int r = 0; r <= job_.count; ++r) {
      for (int64_t c = threadIdx.x; c < S; c += Layout::threads) {
        room_.survives[r * S + c] = c == whole;
      }
    }
    __syncthreads();
    uint8_t* any = room_.survives + job_.count * S;
    take(config_.survivors * config_.chosen,
         [&](int r, int64_t c) { room_.survives[r * S + c] = 1; });
    BlockGroup{}.each(whole, [&](int64_t super) {
      for (int r = 0; r < job_.count; ++r) any[super] |= room_.survives[r * S + super];
    });
  }

  // The blocks of the surviving super-blocks and the fixed ones become the candidates.
  __noinline__ __device__ void narrow(int z) {
    const BlockGroup group;
    const int64_t S = room_.S;
    const uint8_t* any = room_.survives + job_.count * S;
    auto flag = [&](int64_t b) { return any[b >> z] || config_.is_fixed(b, job_.block); };
    candidates_ = group.reduce(
        job_.block, int64_t(0), [&](int64_t b) { return int64_t(flag(b)); }, Plus{});
    group.scan(job_.block, flag, [&](int64_t b, bool yes, int64_t rank) {
      if (yes) room_.list[rank] = int32_t(b);
    });
    narrowed_ = true;
    each_candidate([&](int r, int64_t c) {
      const int64_t b = room_.list[c];
      room_.allowed[r * room_.C + c] =
          config_.is_fixed(b, job_.block) || room_.survives[r * S + (b >> z)];
    });
  }

  const Inputs& in_;
  const BlockConfig& config_;
  const ChoiceRoom<T>& room_;
  const ChoiceJob& job_;
  unsigned char* shared_;
  int64_t candidates_ = 0;
  bool narrowed_ = false;  // the candidates are those of the list
};

}  // namespace brine::cuda
