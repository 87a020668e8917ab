// The choice of key blocks with products of bf16 on tensor cores, for 16 or 32 rows of a tile at a
// time: a thread block scores all candidates of a head in shared memory, then a warp takes a row's
// largest. The mean keys come to shared memory while those before them are multiplied.
//
// With levels, only the scores of a row's surviving super-blocks are kept: the warps multiply the
// blocks of all that survive for any row, since neighbouring rows keep much the same ones.
#include "tensor/cuda/blocks/choice_jobs.cuh"
#include "tensor/cuda/blocks/choice_tile.cuh"
#include "tensor/cuda/core/half_products.cuh"
#include "tensor/kernels/select.h"

namespace brine::cuda {
namespace {

constexpr int kChunk = 64, kStages = 3;  // parts of candidates that are multiplied at once
constexpr int kMaxScores = 32 * kWarp;   // of a row, as a warp takes them
constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr uint16_t kNowhere = 0xffff, kFixedAlone = 0x8000;

BRINE_HD int64_t whole(int64_t n, int64_t of) { return (n + of - 1) / of; }

// Sizes of the shared memory of a thread block.
struct HalfSizes {
  int rows;          // of a turn
  int scores;        // of a row
  int words;         // of a row's bits of super-blocks
  int supers;        // that a row may keep
  int places;        // of the scores of any row's super-blocks in a row
  int blocks;        // words of bits of all blocks
  int kept;          // blocks that a tile may keep
  int chosen, tile;  // blocks of a row; rows of a tile
  bool several;      // heads, whose probabilities are added up

  HalfSizes(const BlockConfig& c, int64_t heads, int64_t all, int rows)
      : rows(rows),
        words(int(whole(c.columns + 1, kWarp))),
        supers(0),
        places(0),
        blocks(int(whole(all + 1, kWarp))),
        kept(int(c.most_kept(all + 1))),
        chosen(int(std::min(c.chosen, all))),
        tile(int(c.tile)),
        several(heads > 1) {
    int64_t max_scores = std::min(c.columns, all);
    for (int z = 1; z <= c.level(all); ++z) {
      const int64_t size = int64_t(1) << z;
      const int64_t row_supers =
          std::min(c.survivors * c.chosen + 1 + whole(c.sinks, size) + whole(c.local, size) + 1,
                   c.columns + 1);
      supers = std::max(supers, int(row_supers));
      places = words * kWarp;
      max_scores = std::max(max_scores, (row_supers << z) + places / 2);  // after a row's scores
    }
    // A multiple of 32 and 4: eight rows' numbers are in different banks.
    scores = int(std::min(whole(max_scores, kWarp) * kWarp, int64_t(1) << 20)) + 4;
  }
  size_t bytes(int step) const {
    const int64_t ints = int64_t(rows) * scores * (several ? 2 : 1) + (rows + 1) * (words + 1) +
                         int64_t(tile) * (1 + chosen) + 2 * blocks + 1 + kept;
    const int64_t shorts = int64_t(rows) * supers + (supers > 0 ? words * kWarp : 0);
    return kStages * size_t(kChunk) * step * sizeof(bf16) + size_t(ints) * sizeof(int32_t) +
           size_t(shorts) * sizeof(uint16_t);
  }
};

// Of 32 bits from 32 w on, those of [from, to).
__device__ inline uint32_t bits_between(int from, int to, int w) {
  auto before = [w](int bit) {
    const int n = bit - w * kWarp;
    return n >= kWarp ? ~0u : (n <= 0 ? 0u : (1u << n) - 1);
  };
  return before(to) & ~before(from);
}

// D: numbers of a row in shared memory; P: parts of a block. All threads make every call.
template <int D, int Bands, int P>
class HalfChoice {
 public:
  static constexpr int rows = 16 * Bands, warps = 4 * Bands, threads = warps * kWarp;
  static constexpr int step = D + 8;  // 16 bytes more: rows of a matrix are in different banks
  static_assert(P == 1 || P == 4);

  __device__ HalfChoice(const ChoiceInputs<float, bf16>& in, const BlockConfig& config,
                        const HalfSizes& n, const ChoiceJob& job)
      : in_(in),
        config_(config),
        n_(n),
        job_(job),
        block_(int(job.block)),
        sinks_(int(config.sinks < job.block ? config.sinks : job.block)),
        local_(int(config.local < job.block ? job.block - config.local : 0)) {
    means_ = dynamic_shared<bf16>();
    auto* at = reinterpret_cast<int32_t*>(means_ + kStages * kChunk * step);
    auto take = [&](int count) {
      int32_t* from = at;
      at += count;
      return from;
    };
    scores_ = reinterpret_cast<float*>(take(rows * n.scores));
    total_ = reinterpret_cast<float*>(take(n.several ? rows * n.scores : 0));
    survive_ = reinterpret_cast<uint32_t*>(take((rows + 1) * n.words));
    super_count_ = take(rows + 1);
    chosen_count_ = take(n.tile);
    chosen_ = take(n.tile * n.chosen);
    kept_ = reinterpret_cast<uint32_t*>(take(n.blocks));
    kept_before_ = take(n.blocks + 1);
    first_row_ = take(n.kept);
    supers_ = reinterpret_cast<uint16_t*>(at);
    any_ = supers_ + rows * n.supers;
  }

  // The list of the tile, ascending.
  __device__ void write(int32_t& count, int32_t* entries, int64_t capacity) {
    for (int w = thread(); w < n_.blocks; w += threads) {
      kept_[w] = bits_between(0, sinks_, w) | bits_between(local_, block_ + 1, w);
    }
    for (int i = thread(); i < n_.kept; i += threads) first_row_[i] = int32_t(kMostTileRows);
    for (int r = thread(); r < n_.tile; r += threads) chosen_count_[r] = 0;
    for (row0_ = 0; row0_ < job_.count; row0_ += rows) {
      rows_ = job_.count - row0_ < rows ? job_.count - row0_ : rows;
      __syncthreads();
      choose();
      __syncthreads();
    }
    if (warp() == 0) {
      int32_t before = 0;
      for (int first = 0; first < n_.blocks; first += kWarp) {
        const int w = first + lane();
        const int32_t bit_count = w < n_.blocks ? __popc(kept_[w]) : 0;
        const int32_t sum = prefix(bit_count);
        if (w < n_.blocks) kept_before_[w] = before + sum - bit_count;
        before += __shfl_sync(kAllLanes, sum, kWarp - 1);
      }
      if (lane() == 0) kept_before_[n_.blocks] = before;
    }
    __syncthreads();
    for (int i = thread(); i < job_.count * n_.chosen; i += threads) {
      const int r = i / n_.chosen;
      if (i % n_.chosen >= chosen_count_[r]) continue;
      const int b = chosen_[i], w = b / kWarp;
      atomicMin(first_row_ + kept_before_[w] + __popc(kept_[w] & below(b % kWarp)), r);
    }
    __syncthreads();
    for (int w = thread(); w < n_.blocks; w += threads) {
      int32_t rank = kept_before_[w];
      for (uint32_t bits = kept_[w]; bits != 0; bits &= bits - 1, ++rank) {
        const int b = w * kWarp + __ffs(int(bits)) - 1;
        if (rank < capacity) entries[rank] = block_entry(b, is_fixed(b) ? 0 : first_row_[rank]);
      }
    }
    const int32_t all = kept_before_[n_.blocks];
    if (thread() == 0) count = all < capacity ? all : int32_t(capacity);
  }

 private:
  // What a row takes the largest of.
  enum class Candidates { supers, blocks, narrowed };

  __device__ static int thread() { return int(threadIdx.x); }
  __device__ static int lane() { return int(threadIdx.x % kWarp); }
  __device__ static int warp() { return int(threadIdx.x / kWarp); }
  __device__ static uint32_t below(int bit) { return (1u << bit) - 1; }
  // Sums of the lanes up to each.
  __device__ static int32_t prefix(int32_t x) {
    for (int by = 1; by < kWarp; by *= 2) {
      const int32_t other = __shfl_up_sync(kAllLanes, x, by);
      if (lane() >= by) x += other;
    }
    return x;
  }
  __device__ bool is_fixed(int b) const { return b < sinks_ || b >= local_; }
  // Of the super-blocks of 2^z blocks that have complete fixed ones, the bits of word w.
  __device__ uint32_t fixed_supers(int z, int w) const {
    const int size = 1 << z, end = local_ < block_ ? (block_ + size - 1) >> z : 0;
    return bits_between(0, (sinks_ + size - 1) >> z, w) | bits_between(local_ >> z, end, w);
  }

  __device__ void choose() {
    const int z = config_.level(block_);
    candidates_ = block_ >> z;
    if (candidates_ == 0) return;
    for (int i = thread(); i < (rows + 1) * n_.words && z > 0; i += threads) survive_[i] = 0;
    for (int h = 0; h < job_.heads; ++h) {
      score<false>(z, h);
      if (z > 0) {
        each_row<Candidates::supers>([&](int) { return candidates_; }, h);
      } else {
        each_row<Candidates::blocks>([&](int) { return candidates_; }, h);
      }
    }
    if (z == 0) return;
    narrow(z);
    for (int h = 0; h < job_.heads; ++h) {
      score<true>(0, h);
      each_row<Candidates::narrowed>([&](int r) { return super_count_[r] << z; }, h);
    }
  }

  // The block of a candidate of all rows together, after narrow(), and of the i-th number of a row.
  __device__ int block_of(int c) const { return (any_[c >> z_] << z_) + (c & ((1 << z_) - 1)); }
  __device__ int block_of(int r, int i) const {
    return (supers_[r * n_.supers + (i >> z_)] << z_) + (i & ((1 << z_) - 1));
  }
  // Where a row has the scores of the super-blocks of any_.
  __device__ uint16_t* places(int r) const {
    return reinterpret_cast<uint16_t*>(scores_ + (r + 1) * n_.scores) - n_.places;
  }

  // The scores of a candidate of all rows together for rows r and r + 8.
  __device__ void put_narrowed(int r, int c, const float (&score)[2]) const {
    const int u = c >> z_, in = c & ((1 << z_) - 1), b = (any_[u] << z_) + in;
    if (b >= block_) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = r + 8 * i;
      const uint16_t place = places(row)[u];
      if (place == kNowhere || ((place & kFixedAlone) != 0 && !is_fixed(b))) continue;
      scores_[row * n_.scores + (place & ~kFixedAlone) + in] = score[i];
    }
  }

  // scores [rows, candidates] = log2(sum of 2^) of the scores of each candidate's parts, those of
  // super-blocks of 2^z blocks; of blocks of any_ after narrow(). Of 16 neighbouring rows of means
  // the four parts of a block are those that a lane multiplies.
  //
  // Addresses are computed before the loop, since their arithmetic takes longer than the products.
  template <bool narrowed>
  __device__ void score(int z, int h) const {
    constexpr unsigned kPacks = D / 8,
                       kTogether = threads / kPacks;  // rows that are loaded at once
    static_assert(threads % kPacks == 0 && kChunk % kTogether == 0 && kTogether % 8 == 0);
    const int d = int(in_.d), count = candidates_ * P;
    const unsigned first = threadIdx.x / kPacks, column = threadIdx.x % kPacks * 8;
    const bool has_column = int(column) < d;
    const bf16* from = in_.keys.of(z, job_.bg) + column;
    bf16* to = means_ + first * step + column;
    auto load = [&](int c0, int turn) {
#pragma unroll
      for (unsigned m = 0; m < kChunk / kTogether; ++m) {
        const unsigned eight = first / 8 + m * (kTogether / 8), in = first % 8;
        const int candidate =
            P == 4 ? c0 / 4 + int(eight / 2 * 4 + in / 2) : c0 + int(8 * eight + in);
        const unsigned part = P == 4 ? eight % 2 * 2 + in % 2 : 0;
        const int b =
            !narrowed ? candidate : (candidate < candidates_ ? block_of(candidate) : block_);
        const bool present = has_column && (narrowed ? b < block_ : b < candidates_);
        copy_16(to + (turn * kChunk + m * kTogether) * step,
                from + (present ? uint64_t(unsigned(b) * P + part) * unsigned(d) : 0), present);
      }
      end_copies();
    };
    load(0, 0);
    if (kChunk < count) load(kChunk, 1);
    const int g = lane() / 4, t = lane() % 4, band = warp() / 4 * 16, slots = warp() % 4 * 16;
    uint32_t q[D / 16][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = band + g + 8 * i;
      const bf16* row = in_.q + (job_.row + h * job_.head_rows + row0_ + (r < rows_ ? r : 0)) * d;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        const int c = 8 * n + 2 * t;
        q[n / 2][n % 2 * 2 + i] =
            r < rows_ && c < d ? *reinterpret_cast<const uint32_t*>(row + c) : 0;
      }
    }
    const int64_t head = job_.bg * job_.heads % in_.H + h;
    const float factor = in_.gain[head] * kLog2OfE / sqrtf(float(d));
    const float* logs = in_.logs.of(z, job_.bg);
    const bf16* means = means_ + (slots + lane() % 8) * step + lane() / 8 * 8;
    float* row_scores = scores_ + (band + g) * n_.scores;
    for (int c0 = 0, turn = 0; c0 < count;
         c0 += kChunk, turn = turn == kStages - 1 ? 0 : turn + 1) {
      const int c = (c0 + slots) / P + (P == 4 ? t : 2 * t);
      Pack<float, 4> log{};
      if constexpr (P == 4) {
        // Means of no block, after the last candidate, take the logarithms of one that exists.
        int b = c < candidates_ ? c : candidates_ - 1;
        if constexpr (narrowed) b = block_of(b) < block_ ? block_of(b) : block_ - 1;
        log = load_pack<4>(logs + uint64_t(unsigned(b)) * 4);
      }
      if (c0 + kChunk < count) {
        wait_copies<1>();
      } else {
        wait_copies<0>();
      }
      __syncthreads();
      if (c0 + 2 * kChunk < count) {
        load(c0 + 2 * kChunk, turn == 0 ? kStages - 1 : turn - 1);
      }
      if (c0 + slots >= count) continue;
      float s[2][4] = {};
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int c = 0; c < D / 16; c += 2) {
          uint32_t b[4];
          load_matrices<false>(b, means + (turn * kChunk + 8 * n) * step + 16 * c);
          multiply_add<bf16>(s[n], q[c], {b[0], b[1]});
          multiply_add<bf16>(s[n], q[c + 1], {b[2], b[3]});
        }
      }
      auto put = [&](int c, const float(&score)[2]) {
        if (c >= candidates_) return;
        if constexpr (narrowed) {
          put_narrowed(band + g, c, score);
        } else {
          row_scores[c] = score[0];
          row_scores[8 * n_.scores + c] = score[1];
        }
      };
      if constexpr (P == 4) {
#pragma unroll
        for (int p = 0; p < 4; ++p) log.v[p] *= kLog2OfE;
        float value[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float x[4] = {s[0][2 * i] * factor + log.v[0], s[0][2 * i + 1] * factor + log.v[1],
                              s[1][2 * i] * factor + log.v[2], s[1][2 * i + 1] * factor + log.v[3]};
          const float max_score = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
          const float sum = exp2_nonpositive(x[0] - max_score) +
                            exp2_nonpositive(x[1] - max_score) +
                            exp2_nonpositive(x[2] - max_score) + exp2_nonpositive(x[3] - max_score);
          value[i] = max_score + log2_of(sum);
        }
        put(c, value);
      } else {
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          put(c + n / 2 * 8 + n % 2, {s[n / 2][n % 2] * factor, s[n / 2][n % 2 + 2] * factor});
        }
      }
    }
    __syncthreads();
  }

  // After the scores of head h: probabilities of the `count(r)` numbers of each row; those of the
  // last head's sums that are largest survive or are chosen.
  template <Candidates of, class Count>
  __device__ void each_row(Count count, int h) const {
    for (int r = warp(); r < rows_; r += warps) {
      const int n = count(r);
      if (n <= 4 * kWarp) {
        take_row<of, 4>(r, n, h);
      } else if (n <= 8 * kWarp) {
        take_row<of, 8>(r, n, h);
      } else if (n <= 16 * kWarp) {
        take_row<of, 16>(r, n, h);
      } else {
        take_row<of, 32>(r, n, h);
      }
    }
    __syncthreads();
  }

  template <Candidates of, int kPerLane>
  __device__ void take_row(int r, int n, int h) const {
    const float* scores = scores_ + r * n_.scores;
    float x[kPerLane];
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      const int c = lane() + j * kWarp;
      x[j] = c < n ? scores[c] : kNone;
    }
    if (job_.heads > 1) add_probabilities(x, total_ + r * n_.scores, n, h);
    if (h < job_.heads - 1) return;
    auto block = [&](int c) { return of == Candidates::narrowed ? block_of(r, c) : c; };
    // Of one head, probabilities have the order of its scores; those of 0, ties for other kernels,
    // do not tie here.
    uint32_t key[kPerLane];
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      const int c = lane() + j * kWarp;
      bool may = c < n && x[j] != kNone;
      if constexpr (of != Candidates::supers) may = may && !is_fixed(block(c));
      key[j] = may ? order_key(x[j]) : 0;
    }
    if constexpr (of == Candidates::supers) {
      uint32_t* words = survive_ + r * n_.words;
      take_few(key, config_.survivors * config_.chosen, [&](int j, uint32_t lanes) {
        if (lane() == 0 && j < n_.words) words[j] = lanes;
      });
    } else {
      const int row = row0_ + r;
      int32_t before = 0;
      take_few(key, config_.chosen, [&](int j, uint32_t lanes) {
        if ((lanes >> lane() & 1) != 0) {
          const int b = block(lane() + j * kWarp);
          chosen_[row * n_.chosen + before + __popc(lanes & below(lane()))] = b;
          atomicOr(kept_ + b / kWarp, 1u << b % kWarp);
        }
        before += __popc(lanes);
      });
      if (lane() == 0) chosen_count_[row] = before;
    }
  }

  // Scores x of head h -> the sums of the probabilities up to that head, which total keeps for the
  // next.
  template <int kPerLane>
  __device__ void add_probabilities(float (&x)[kPerLane], float* total, int n, int h) const {
    float max_score = std::numeric_limits<float>::lowest(), norm = 0;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) max_score = Max{}(max_score, x[j]);
    max_score = warp_max(max_score);
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) norm += exp2_nonpositive(x[j] - max_score);
    const float share = 1 / warp_sum(norm);
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      const int c = lane() + j * kWarp;
      if (c >= n || x[j] == kNone) continue;
      x[j] = exp2_nonpositive(x[j] - max_score) * share + (h > 0 ? total[c] : 0);
      if (h < job_.heads - 1) total[c] = x[j];
    }
  }

  // The blocks of the surviving super-blocks, of the incomplete one and the fixed ones become the
  // candidates.
  __device__ void narrow(int z) {
    const int complete = block_ >> z, incomplete = complete << z < block_ ? complete + 1 : complete;
    const bool has_word = lane() < n_.words;
    uint32_t* any_bits = survive_ + rows * n_.words;
    const uint32_t always = bits_between(complete, incomplete, lane()) | fixed_supers(z, lane());
    for (int r = warp(); r < rows_; r += warps) {
      if (!has_word) continue;
      uint32_t& row_bits = survive_[r * n_.words + lane()];
      row_bits |= bits_between(complete, incomplete, lane());
      atomicOr(any_bits + lane(), row_bits | always);
    }
    __syncthreads();
    auto list = [&](uint32_t bits, uint16_t* to, int32_t* all) {
      const int32_t bit_count = __popc(bits), sum = prefix(bit_count);
      if (lane() == kWarp - 1) *all = sum;
      int32_t rank = sum - bit_count;
      for (; bits != 0; bits &= bits - 1)
        to[rank++] = uint16_t(lane() * kWarp + __ffs(int(bits)) - 1);
      return sum - bit_count;
    };
    if (warp() == 0) list(has_word ? any_bits[lane()] : 0, any_, super_count_ + rows);
    __syncthreads();
    const int all = super_count_[rows];
    for (int r = warp(); r < rows; r += warps) {
      const uint32_t survive = has_word && r < rows_ ? survive_[r * n_.words + lane()] : 0;
      const uint32_t stored = r < rows_ && has_word ? survive | fixed_supers(z, lane()) : 0;
      const int32_t before = list(stored, supers_ + r * n_.supers, super_count_ + r);
      __syncwarp();
      for (int c = lane(); c < super_count_[r] << z; c += kWarp) scores_[r * n_.scores + c] = kNone;
      for (int first = 0; first < all; first += kWarp) {
        const int u = first + lane(), super = u < all ? any_[u] : 0;
        const uint32_t bits = __shfl_sync(kAllLanes, stored, super / kWarp),
                       alive = __shfl_sync(kAllLanes, survive, super / kWarp);
        const int rank =
            __shfl_sync(kAllLanes, before, super / kWarp) + __popc(bits & below(super % kWarp));
        if (u >= all) continue;
        const bool is_alive = (alive >> super % kWarp & 1) != 0;
        places(r)[u] = (bits >> super % kWarp & 1) == 0
                           ? kNowhere
                           : uint16_t(rank << z | (is_alive ? 0 : kFixedAlone));
      }
    }
    __syncthreads();
    z_ = z;
    candidates_ = all << z;
  }

  const ChoiceInputs<float, bf16>& in_;
  const BlockConfig& config_;
  const HalfSizes& n_;
  const ChoiceJob& job_;
  const int block_, sinks_, local_;  // complete blocks below sinks_ and from local_ on are fixed
  bf16* means_;                      // [stages, chunk, step]
  float* scores_;      // [rows, scores] of a head, -infinity where the row may not choose; places
  float* total_;       // the same, sums of the probabilities of earlier heads
  uint32_t* survive_;  // [rows + 1, words] bits of super-blocks, the last row: that any keeps
  int32_t* super_count_;             // [rows + 1]
  int32_t *chosen_count_, *chosen_;  // [tile], [tile, chosen]
  uint32_t* kept_;                   // bits of the blocks that the tile keeps
  int32_t *kept_before_, *first_row_;
  uint16_t *supers_, *any_;     // [rows, supers] that have scores, ascending; those of any row
  int row0_ = 0, rows_ = 0;     // of a turn
  int candidates_ = 0, z_ = 0;  // z_: the level of the super-blocks of any_, set by narrow()
};

template <int D, int Bands, int P>
__global__ void __launch_bounds__(HalfChoice<D, Bands, P>::threads, 4 / Bands)
    choose_half_kernel(const MaskLists to, const TileJobs jobs,
                       const __grid_constant__ ChoiceInputs<float, bf16> in,
                       const __grid_constant__ BlockConfig config, const HalfSizes n) {
  const ChoiceJob job = jobs(blockIdx.x, to, config);
  int32_t& count = to.counts[job.list];
  if (job.count == 0) {
    if (threadIdx.x == 0) count = 0;
    return;
  }
  HalfChoice<D, Bands, P>(in, config, n, job)
      .write(count, to.entries + job.list * to.capacity, to.capacity);
}

}  // namespace

bool select_blocks_half(const MaskLists& to, const TileJobs& jobs, BlockScores scores,
                        const BlockConfig& config) {
  const int64_t d = scores.q.dim(3), parts = config.parts;
  if (!tensor_cores(Dtype::bf16) || d % 8 != 0 || d > 128 || (parts != 1 && parts != 4) ||
      config.columns >= kMaxScores - 1 || config.opinion > 0) {
    return false;
  }
  // Sums of probabilities of several heads leave room for half as many rows.
  const int bands = config.tile > 16 && to.heads == 1 && d <= 64 ? 2 : 1;
  const HalfSizes n(config, to.heads, scores.key_parts[0].means.dim(2) / parts, 16 * bands);
  const size_t shared = n.bytes(d > 64 ? 136 : 72);
  if (n.scores > kMaxScores + 4 || shared > most_shared()) return false;
  for (const KeyParts& level : scores.key_parts) {
    if (parts == 4 && !aligned(16, level.logs.data<float>())) return false;
  }
  scores.q = scores.q.to(Dtype::bf16);
  for (KeyParts& level : scores.key_parts) level.means = level.means.to(Dtype::bf16);
  const ChoiceInputs<float, bf16> in(scores);
  auto launch_of = [&]<int D, int Bands, int P>() {
    launch("select_blocks_half", choose_half_kernel<D, Bands, P>,
           dim3(blocks_for(to.groups * to.tiles, 1)), dim3(HalfChoice<D, Bands, P>::threads),
           shared, to, jobs, in, config, n);
  };
  auto launch_by = [&]<int P>() {
    if (d > 64) return launch_of.template operator()<128, 1, P>();
    if (bands == 1) return launch_of.template operator()<64, 1, P>();
    launch_of.template operator()<64, 2, P>();
  };
  if (parts == 1) {
    launch_by.template operator()<1>();
  } else {
    launch_by.template operator()<4>();
  }
  return true;
}

}  // namespace brine::cuda
