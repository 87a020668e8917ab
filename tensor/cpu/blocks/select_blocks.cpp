// The choice of key blocks for a tile of rows at once: scores of the moments of blocks leave
// candidates, integer products of 8-bit queries with 4-bit copies of keys choose among them.
//
// The rows of all heads of a group are the lanes of vectors: lane h R + r is row r of head h. Lanes
// do not depend on each other, so a row has the same bits in a tile and by itself.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "tensor/base/stored.h"
#include "tensor/cpu/attention/flash_tile.h"
#include "tensor/cpu/blocks/code_row.h"
#include "tensor/cpu/blocks/code_tile.h"
#include "tensor/cpu/core/pieces.h"
#include "tensor/kernels/blocks.h"
#include "tensor/mask/csr.h"

namespace brine::BRINE_CPU {
namespace {

// The rows of one group whose blocks are chosen together: all are in `block`.
template <class T>
struct Rows {
  int64_t bg, block, count;  // b G + g; rows
  const T* q;                // of the first head's first row, [d]
  int64_t q_step;            // between heads
};

template <class T>
class Chooser {
 public:
  // For tiles of R rows; keeps its memory from call to call.
  void begin(const BlockScores& scores, const BlockConfig& config, int64_t H, int64_t G,
             int64_t R) {
    scores_ = &scores;
    config_ = &config;
    G_ = G;
    heads_ = H / G;
    R_ = R;
    rows_step_ = whole_vectors<T>(R);
    if (scores.shares.defined() || config.chosen == 0) return;  // a window has no codes
    d_ = scores.q.dim(3);
    half_ = scores.keys.codes.dim(4);
    depth_ = (2 * half_ + 3) / 4 * 4;
    lanes_ = by_rows() ? whole_vectors<T>(heads_ * R) : (heads_ * R + 15) / 16 * 16;
  }

  // Chooses for every row of a tile; returns for how many rows and heads a score was NaN.
  int64_t choose(const Rows<T>& at) {
    start(at);
    const int64_t n = config_->chosen, free = config_->free_blocks(at.block);
    if (n == 0 || free == 0) return 0;
    all_blocks(at.block);
    if (free <= n) {
      drop_fixed();
      return 0;
    }
    load_rows(at);
    int64_t nans = free > config_->candidates ? propose() : 0;
    nans += judge();
    take(n, true);
    drop_fixed();
    return nans;
  }

  // As above from the shares of blocks, `p` of the first head's first row.
  void choose_shares(const Rows<T>& at, const T* p, int64_t head_step, int64_t row_step) {
    start(at);
    if (config_->chosen == 0) return;
    all_blocks(at.block);
    sums_.assign(size_t(at.block * rows_step_), kTaken);
    for (int64_t c = 0; c < at.block; ++c) {
      for (int64_t r = 0; r < at.count; ++r) {
        T sum = p[r * row_step + c];
        for (int64_t h = 1; h < heads_; ++h) sum += p[h * head_step + r * row_step + c];
        sums_[size_t(c * rows_step_ + r)] = sum;
      }
    }
    take(config_->chosen, true);
    drop_fixed();
  }

  // f(block, bits of the rows that chose it), blocks ascending.
  template <class F>
  void each_chosen(F f) const {
    for (size_t c = 0; c < blocks_.size(); ++c) f(blocks_[c], may_[c]);
  }

 private:
  static constexpr int W = kWidth<T>;
  static constexpr int64_t kRun = 120;  // blocks whose moments fit into the first caches
  static constexpr T kTaken = -1;       // below all sums of probabilities

  void start(const Rows<T>& at) {
    at_ = at;
    all_ = at.count == 64 ? ~uint64_t(0) : (uint64_t(1) << at.count) - 1;
    blocks_.clear();
    may_.clear();
  }

  bool is_fixed(size_t c) const { return config_->is_fixed(blocks_[c], at_.block); }
  int64_t candidates() const { return int64_t(blocks_.size()); }

  void all_blocks(int64_t end) {
    blocks_.resize(size_t(end));
    std::iota(blocks_.begin(), blocks_.end(), 0);
    may_.assign(size_t(end), all_);
  }

  // Keeps the blocks for which f(c) has rows, with these.
  template <class F>
  void keep(F f) {
    size_t n = 0;
    for (size_t c = 0; c < blocks_.size(); ++c) {
      const uint64_t rows = f(c);
      if (rows == 0) continue;
      blocks_[n] = blocks_[c];
      may_[n++] = rows;
    }
    blocks_.resize(n);
    may_.resize(n);
  }
  void drop_fixed() {
    keep([&](size_t c) { return is_fixed(c) ? 0 : may_[c]; });
  }

  // Queries as lanes: q' = q log2(e) / sqrt(d) and |q'|; in 8 bits, with their steps and 7.5 times
  // their sums.
  void load_rows(const Rows<T>& at) {
    scratch_.reserve((2 * d_ + 3) * lanes_, 4);
    q_ = scratch_.take(2 * d_ * lanes_);
    step_ = scratch_.take(lanes_);
    offset_ = scratch_.take(lanes_);
    largest_ = scratch_.take(lanes_);
    if (at.count < R_ || lanes_ > heads_ * R_) std::fill_n(q_, d_ * lanes_, T(0));
    const T root = T(1.4426950408889634 / std::sqrt(double(d_)));
    for (int64_t h = 0; h < heads_; ++h) {
      const T* from = at.q + h * at.q_step;
      T* to = q_ + h * R_;
      if (R_ % W == 0) {
        transpose<true>(Lanes<T>{to, lanes_}, Lanes<const T>{from, d_}, at.count, d_,
                        [root](int64_t) { return root; });
      } else {
        for (int64_t r = 0; r < at.count; ++r) {
          for (int64_t c = 0; c < d_; ++c) to[c * lanes_ + r] = from[r * d_ + c] * root;
        }
      }
    }
    const T* sigma = scores_->key_scale.template data<T>() + at.bg % G_ * d_;
    u_.assign(size_t(depth_ * lanes_ / 4), 0);
    for (int64_t l = 0; l < lanes_; l += W) round_rows(l, sigma);
    if (by_rows()) {
      u_rows_.resize(size_t(heads_ * depth_));
      for (int64_t i = 0; i < heads_ * depth_; i += 4) {
        std::memcpy(&u_rows_[size_t(i)], &u_[size_t(i % depth_ / 4 * lanes_ + i / depth_)], 4);
      }
    }
  }

  // W lanes: |q'|, and the numbers in 8 bits.
  void round_rows(int64_t l, const T* sigma) {
    using M = Mask<T>;
    Vector<T> largest{};
    for (int64_t c = 0; c < d_; ++c) {
      const Vector<T> x = load(q_ + c * lanes_ + l), size = x < 0 ? -x : x;
      store(q_ + (d_ + c) * lanes_ + l, size);
      const Vector<T> w = size * sigma[c];
      largest = w > largest ? w : largest;
    }
    const Vector<T> step = largest / T(127);
    typedef int32_t Words __attribute__((vector_size(W * 4)));
    M sum{}, word{};  // four channels of each lane
    for (int64_t c = 0; c < d_; ++c) {
      const Vector<T> w = load(q_ + c * lanes_ + l) * sigma[c];
      const M u = rounded(step > 0 ? w / step : Vector<T>{});
      sum += u;
      word |= (u & 255) << int(8 * (c % 4));
      if (c % 4 < 3 && c + 1 < d_) continue;
      const Words words = __builtin_convertvector(word, Words);
      std::memcpy(u_.data() + c / 4 * lanes_ + l, &words, sizeof words);
      word = M{};
    }
    store(step_ + l, step);
    store(offset_ + l, __builtin_convertvector(sum, Vector<T>) * T(7.5));
  }

  // Half to even; of a NaN any number: its products with mean keys are found to be NaN.
  static Mask<double> rounded(Vector<double> x) {
    Mask<double> out{};
    for (int i = 0; i < kWidth<double>; ++i) {
      out[i] = std::fabs(x[i]) < 128 ? int64_t(std::nearbyint(x[i])) : 0;
    }
    return out;
  }
  static Mask<float> rounded(Vector<float> x) {
    return Mask<float>(x + math::kRounder) - std::bit_cast<int>(math::kRounder);
  }

  // s_ [blocks, lanes] = products of the first `depth` of q' and |q'| with the moments of blocks_.
  void multiply(int level, int64_t depth) {
    s_.resize(size_t(candidates() * lanes_));
    const Tensor& moments = scores_->keys.moments[size_t(level)];
    const int64_t before = at_.bg * moments.dim(2);
    for (int64_t c = 0; c < candidates();) {
      const int64_t first = blocks_[size_t(c)];
      int64_t n = 1;
      while (c + n < candidates() && n < kRun && blocks_[size_t(c + n)] == first + n) ++n;
      const T* rows = numbers(moments, (before + first) * 2 * d_, n * 2 * d_);
      if (R_ == 1 && depth > d_) prefetch(rows, n * 2 * d_ * int64_t(sizeof(T)));
      T* const to = s_.data() + c * lanes_;
      const int64_t done =
          row_products(heads_, R_ > 1 ? 0 : n, depth, rows, 2 * d_, q_, lanes_, to);
      tile_product(n - done, lanes_, depth, Broadcast<T, false>{rows + 2 * d_ * done, 2 * d_},
                   Lanes<const T>{q_, lanes_}, Lanes<T>{to + done * lanes_, lanes_});
      c += n;
    }
  }

  // n numbers of a tensor from `at` on: themselves, or of 16 bits their copy.
  const T* numbers(const Tensor& from, int64_t at, int64_t n) {
    if (from.dtype() == DtypeOf<T>::value) return from.template data<T>() + at;
    copy_.resize(size_t(n));
    dispatch_stored(DtypeOf<T>::value, from.dtype(), [&]<class, class Stored>() {
      const Stored* x = from.template data<Stored>() + at;
      for (int64_t i = 0; i < n; ++i) copy_[size_t(i)] = T(widened(x[i]));
    });
    return copy_.data();
  }

  // Scores s_ of blocks times weight -> sums_ [blocks, rows_step]: their softmax over the blocks
  // that a row may choose, summed over heads. `weight` may be null: 1. Returns the NaN.
  int64_t soften(const T* weight) {
    const int64_t n = candidates();
    for (int64_t c = 0; c < n; ++c) hide(s_.data() + c * lanes_, may_[size_t(c)]);
    int64_t nans = 0;
    for (int64_t l = 0; l < lanes_; l += W) {
      T* s = s_.data() + l;
      Vector<T> largest = Vector<T>{} + std::numeric_limits<T>::lowest();
      for (int64_t c = 0; c < n; ++c) {
        const Vector<T> x = load(s + c * lanes_);
        largest = x > largest ? x : largest;
      }
      Vector<T> strand[kStrands] = {};
      Mask<T> number = Mask<T>{} - 1;
      for (int64_t c = 0; c < n; ++c) {
        const Vector<T> x = load(s + c * lanes_);
        number &= x == x;
        Vector<T> p = exp2_of_lanes(x - largest);
        if (weight) p *= load(weight + c * lanes_ + l);
        store(s + c * lanes_, p);
        strand[blocks_[size_t(c)] % kStrands] += p;
      }
      const Vector<T> sum = sum_of_strands(strand);
      const Vector<T> norm = sum > 0 ? 1 / sum : Vector<T>{};
      for (int64_t i = 0; i < W; ++i) {
        const bool real = l + i < heads_ * R_ && (l + i) % R_ < at_.count;
        nans += real && !(number[i] && sum[i] < std::numeric_limits<T>::infinity());
      }
      for (int64_t c = 0; c < n; ++c) store(s + c * lanes_, load(s + c * lanes_) * norm);
    }
    sums_.assign(size_t(n * rows_step_), kTaken);
    for (int64_t c = 0; c < n; ++c) {
      const T* row = s_.data() + c * lanes_;
      T* to = sums_.data() + c * rows_step_;
      std::copy_n(row, R_, to);
      for (int64_t h = 1; h < heads_; ++h) {
#pragma omp simd
        for (int64_t r = 0; r < R_; ++r) to[r] += row[h * R_ + r];
      }
    }
    return nans;
  }

  // The lanes of rows without a bit become -infinity.
  void hide(T* s, uint64_t rows) const {
    for (uint64_t left = all_ & ~rows; left; left &= left - 1) {
      const int r = std::countr_zero(left);
      for (int64_t h = 0; h < heads_; ++h) {
        s[h * R_ + r] = -std::numeric_limits<T>::infinity();
      }
    }
  }

  // The first pass: blocks_ and may_ become the candidates of each row and the fixed blocks.
  int64_t propose() {
    const int z = config_->level(at_.block);
    int64_t nans = 0;
    if (z > 0) {
      const int64_t whole = at_.block >> z;
      all_blocks(whole);
      if (whole > config_->candidates) {
        multiply(z, 2 * d_);
        nans += soften(nullptr);
        take(config_->candidates, false);
      }
      open_.assign(size_t(whole + 1), all_);
      for (int64_t c = 0; c < whole; ++c) open_[size_t(c)] = may_[size_t(c)];
      all_blocks(at_.block);
      keep([&](size_t b) { return is_fixed(b) ? all_ : open_[b >> z]; });
    }
    multiply(0, 2 * d_);
    nans += soften(nullptr);
    take(config_->candidates, true);
    keep([&](size_t c) { return is_fixed(c) ? all_ : may_[c]; });
    return nans;
  }

  // The second pass: sums_ of the candidates by the copies of their keys.
  int64_t judge() {
    const int64_t n = candidates(), B = config_->block;
    multiply(0, d_);
    weights_.resize(size_t(n * lanes_));
    y_.resize(size_t(B * lanes_));
    if (by_rows()) return judge_row();
    codes_.assign(size_t(B * depth_), 0);
    static const code_tile::Engine engine = code_tile::engine();
    const int64_t blocks = scores_->keys.steps.dim(2);
    for (int64_t c = 0; c < n; ++c) {
      const int64_t at = at_.bg * blocks + blocks_[size_t(c)];
      unpack(scores_->keys.codes.template data<uint8_t>() + at * B * half_, codes_.data(), B);
      multiply_codes(engine, numbers(scores_->keys.steps, at * B, B));
      for (int64_t l = 0; l < lanes_; l += W) {
        T *score = s_.data() + c * lanes_ + l, *weight = weights_.data() + c * lanes_ + l;
        if (rows_of_vector(l) & may_[size_t(c)]) {
          sum_keys(score, weight, l);
        } else {
          store(weight, Vector<T>{});
        }
      }
    }
    return soften(weights_.data());
  }

  // Whether a row is chosen for by itself, its keys as lanes.
  bool by_rows() const {
    return sizeof(T) == 4 && R_ == 1 && takes_code_row(config_->block, half_);
  }

  // judge() of one row.
  int64_t judge_row() {
    std::fill(weights_.begin(), weights_.end(), T(0));
#ifdef __AVX2__
    if constexpr (sizeof(T) == 4) {
      const int64_t n = candidates(), B = config_->block, size = B * half_;
      const auto* codes = scores_->keys.codes.template data<uint8_t>();
      const Tensor& all_steps = scores_->keys.steps;
      const int64_t steps_size = B * int64_t(item_size(all_steps.dtype()));
      const int64_t before = at_.bg * all_steps.dim(2);
      for (int64_t c = 0; c < n; ++c) {
        const int64_t at = before + blocks_[size_t(c)];
        if (c + 2 < n) {
          const int64_t next = before + blocks_[size_t(c + 2)];
          prefetch(codes + next * size, size);
          prefetch(all_steps.raw() + next * steps_size, steps_size);
        }
        T* weight = weights_.data() + c * lanes_;
        code_row(heads_, B, half_, codes + at * size, u_rows_.data(), numbers(all_steps, at * B, B),
                 offset_, step_, largest_, weight, y_.data());
        T* score = s_.data() + c * lanes_;
        for (int64_t h = 0; h < heads_; ++h) score[h] = std::fma(largest_[h], step_[h], score[h]);
      }
    }
#endif
    return soften(weights_.data());
  }

  // The rows that lanes [l, l + W) belong to.
  uint64_t rows_of_vector(int64_t l) const {
    return R_ % W == 0 ? ((uint64_t(1) << W) - 1) << l % R_ : all_;
  }

  void unpack(const uint8_t* __restrict from, uint8_t* __restrict to, int64_t keys) const {
    const int64_t half = half_, depth = depth_;
    typedef uint8_t Bytes __attribute__((vector_size(16)));
    for (int64_t j = 0; j < keys; ++j, from += half, to += depth) {
      int64_t c = 0;
      for (; c + 16 <= half; c += 16) {
        Bytes x;
        std::memcpy(&x, from + c, sizeof x);
        const Bytes low = x & 15, high = x >> 4;
        std::memcpy(to + c, &low, sizeof x);
        std::memcpy(to + half + c, &high, sizeof x);
      }
      for (; c < half; ++c) {
        to[c] = from[c] & 15;
        to[half + c] = from[c] >> 4;
      }
    }
  }

  // y_ [block, lanes] of codes_, largest_ of each lane.
  void multiply_codes(code_tile::Engine engine, const T* steps) {
    const int64_t B = config_->block;
    const auto* u = reinterpret_cast<const int8_t*>(u_.data());
    if constexpr (sizeof(T) == 4) {
      code_tile::scores(engine, B, lanes_, depth_, codes_.data(), u, {steps, offset_, largest_},
                        y_.data());
    } else {
      products_.resize(size_t(B * lanes_));
      code_tile::product(engine, B, lanes_, depth_, codes_.data(), u, products_.data());
      std::fill_n(largest_, lanes_, std::numeric_limits<T>::lowest());
      for (int64_t i = 0; i < B * lanes_; ++i) {
        const int64_t l = i % lanes_;
        y_[size_t(i)] = (T(products_[size_t(i)]) - offset_[l]) * steps[i / lanes_];
        largest_[l] = std::max(largest_[l], y_[size_t(i)]);
      }
    }
  }

  // The keys of one block for W lanes: their largest score is added to `score`, their powers below
  // it are summed.
  void sum_keys(T* score, T* weight, int64_t lane) {
    const int64_t B = config_->block, lanes = lanes_;
    const Vector<T> step = load(step_ + lane), largest = load(largest_ + lane);
    const T* y = y_.data() + lane;
    Vector<T> strand[kStrands] = {};
    int64_t j = 0;
    for (; j + kStrands <= B; j += kStrands) {
#pragma GCC unroll 8
      for (int i = 0; i < kStrands; ++i) {
        strand[i] += exp2_of_lanes((load(y + (j + i) * lanes) - largest) * step);
      }
    }
    for (int i = 0; j < B; ++j, ++i) {
      strand[i] += exp2_of_lanes((load(y + j * lanes) - largest) * step);
    }
    store(score, largest * step + load(score));
    store(weight, sum_of_strands(strand));
  }

  // may_ = the rows for which a block is among the `limit` largest sums, of equal ones the later
  // block; fixed blocks compete only if not `free`. By bisection on the bits of the sums.
  void take(int64_t limit, bool free) {
    const int64_t n = candidates();
    taken_.assign(size_t(n), 0);
    for (int64_t c = 0; c < n; ++c) {
      T* row = sums_.data() + c * rows_step_;
      const uint64_t rows = free && is_fixed(size_t(c)) ? 0 : may_[size_t(c)];
      for (uint64_t left = all_ & ~rows; left; left &= left - 1)
        row[std::countr_zero(left)] = kTaken;
    }
    for (int64_t first = 0; first < R_; first += W) take_vector(limit, first);
    for (int64_t c = 0; c < n; ++c) may_[size_t(c)] = taken_[size_t(c)] & all_;
  }

  void take_vector(int64_t limit, int64_t first) {
    using M = Mask<T>;
    const int64_t n = candidates();
    auto bits = [&](int64_t c) {
      return std::bit_cast<M>(load(sums_.data() + c * rows_step_ + first));
    };
    M low{}, high{}, count{};
    for (int64_t c = 0; c < n; ++c) {
      const M x = bits(c);
      high = x > high ? x : high;
      count -= x >= 0;
    }
    high += 1;
    const M limits = M{} + MaskLane<T>(limit);
    M done = count <= limits;
    for (;;) {
      const M active = ~done & (high - low > 1);
      if (bits_of<T>(active) == 0) break;
      const M middle = low + ((high - low) >> 1);
      count = M{};
      for (int64_t c = 0; c < n; ++c) count -= bits(c) >= middle;
      low = (active & (count >= limits)) ? middle : low;
      high = (active & (count < limits)) ? middle : high;
      done |= active & (count == limits);
    }
    M left = limits;
    for (int64_t c = 0; c < n; ++c) left += bits(c) > low;
    for (int64_t c = n - 1; c >= 0; --c) {
      const M x = bits(c), equal = (x == low) & (left > 0);
      left += equal;
      taken_[size_t(c)] |= bits_of<T>((x > low) | equal) << first;
    }
  }

  const BlockScores* scores_ = nullptr;
  const BlockConfig* config_ = nullptr;
  int64_t G_ = 1, heads_ = 1, R_ = 1, lanes_ = 0, rows_step_ = 0, d_ = 0, half_ = 0, depth_ = 0;
  Rows<T> at_ = {};
  uint64_t all_ = 0;  // the tile's rows
  Scratch<T> scratch_;
  T *q_ = nullptr, *step_ = nullptr, *offset_ = nullptr, *largest_ = nullptr;
  std::vector<uint32_t> u_;     // [depth / 4, lanes]: four channels each
  std::vector<int8_t> u_rows_;  // of one row: [heads, depth]
  std::vector<uint8_t> codes_;  // [block, depth]
  std::vector<int32_t> products_;
  std::vector<T> y_, s_, weights_;            // [block, lanes]; [blocks, lanes] twice
  std::vector<T> sums_, copy_;                // [blocks, rows_step]; moments of a run
  std::vector<int64_t> blocks_;               // that are scored, ascending
  std::vector<uint64_t> may_, taken_, open_;  // bits of rows, by block
};

// The rows of a tile that keep a block: from first_row[b] on; -1: none yet.
class TileUnion {
 public:
  explicit TileUnion(int64_t blocks) : first_row_(size_t(blocks), -1) {}
  void add(int64_t block, int64_t row) {
    int32_t& at = first_row_[size_t(block)];
    if (at < 0) at = int32_t(row);
  }
  int64_t write(int32_t* entries) const {
    int64_t n = 0;
    for (size_t b = 0; b < first_row_.size(); ++b) {
      if (first_row_[b] >= 0) entries[n++] = block_entry(int64_t(b), first_row_[b]);
    }
    return n;
  }

 private:
  std::vector<int32_t> first_row_;
};

void add_fixed(TileUnion& kept, const BlockConfig& config, int64_t block) {
  for (int64_t b = 0; b < std::min(config.sinks, block); ++b) kept.add(b, 0);
  for (int64_t b = std::max<int64_t>(0, block - config.local); b <= block; ++b) kept.add(b, 0);
}

// What choosing for one row and head costs, in multiply-adds, roughly.
int64_t work_of_row(const BlockConfig& config, int64_t d) {
  return (config.candidates * config.block / 4 + config.columns) * d;
}

}  // namespace

void select_blocks(BlockMask mask, Tensor nan_count, BlockScores scores, BlockConfig config,
                   Visibility visible) {
  const bool shares = scores.shares.defined();
  const Tensor& q = shares ? scores.shares : scores.q;
  const int64_t B = mask.counts.dim(0), G = mask.counts.dim(1), R = config.tile;
  const int64_t H = q.dim(1), rows = q.dim(2), d = q.dim(3);
  const int64_t tiles = mask.tile_count(), room = mask.capacity();
  const RowWidths widths(visible, std::numeric_limits<int64_t>::max());
  std::atomic<int64_t> nans = 0;
  dispatch_float(q.dtype(), [&]<class T>() {
    for_pieces(B * G * tiles, B * H * rows * work_of_row(config, d), [&](int64_t i) {
      // Long tiles first, so that threads finish at similar times.
      const int64_t bg = i % (B * G), n = tiles - 1 - i / (B * G), b = bg / G;
      const int64_t number = mask.tiles.defined() ? mask.tiles.data<int32_t>()[n] : n;
      const int64_t first = number * R, block = first / config.block;
      const int64_t length = visible.lengths.defined() ? widths.length(b) : rows + first;
      const int64_t count = std::clamp<int64_t>(std::min(length - first, rows - n * R), 0, R);
      int32_t& kept_count = mask.counts.data<int32_t>()[bg * tiles + n];
      if (count == 0) return (void)(kept_count = 0);
      TileUnion kept(block + 1);
      add_fixed(kept, config, block);
      if (config.chosen > 0) {
        const int64_t head = b * H + bg % G * (H / G);
        const T* from = q.data<T>() + (head * rows + n * R) * d;
        thread_local Chooser<T> chooser;
        chooser.begin(scores, config, H, G, R);
        const Rows<T> at{bg, block, count, from, rows * d};
        if (shares) {
          chooser.choose_shares(at, from, rows * d, d);
        } else {
          nans += chooser.choose(at);
        }
        chooser.each_chosen([&](int64_t b, uint64_t bits) { kept.add(b, std::countr_zero(bits)); });
      }
      kept_count = int32_t(kept.write(mask.entries.data<int32_t>() + (bg * tiles + n) * room));
    });
  });
  nan_count.data<int64_t>()[0] = nans;
}

void select_blocks_step(BlockMask mask, Tensor nan_count, BlockScores scores, BlockConfig config,
                        Tensor width) {
  const Tensor& q = scores.q;
  const int64_t B = q.dim(0), H = q.dim(1), d = q.dim(3), G = mask.counts.dim(1);
  const int64_t room = mask.capacity();
  std::atomic<int64_t> nans = 0;
  dispatch_float(q.dtype(), [&]<class T>() {
    for_pieces(B * G, B * H * work_of_row(config, d), [&](int64_t bg) {
      const int64_t b = bg / G, t = width.data<int64_t>()[b] - 1, block = t / config.block;
      const int64_t head = b * H + bg % G * (H / G), row = t % config.tile;
      int32_t* entries = mask.entries.data<int32_t>() + bg * room;
      int32_t& count = mask.counts.data<int32_t>()[bg];
      TileUnion kept(block + 1);
      for (int32_t e = 0; row > 0 && e < count; ++e) {
        kept.add(entry_block(entries[e]), entry_row(entries[e]));
      }
      add_fixed(kept, config, block);
      thread_local Chooser<T> chooser;
      chooser.begin(scores, config, H, G, 1);
      nans += chooser.choose({bg, block, 1, q.data<T>() + head * d, d});
      chooser.each_chosen([&](int64_t chosen, uint64_t) { kept.add(chosen, row); });
      count = int32_t(kept.write(entries));
    });
  });
  nan_count.data<int64_t>()[0] = nans;
}

}  // namespace brine::BRINE_CPU
