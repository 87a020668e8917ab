// The choice of key blocks: scores of the mean keys of parts of blocks and of the learned prior for
// a tile of rows at once, softmax over all parts, sums over the parts of a block and the heads of a
// group, the largest of each row, the union of the tile.
//
// The rows of all heads of a group are the lanes of vectors: lane h R + r is row r of head h. Lanes
// do not depend on each other, so a row has the same bits in a tile and by itself.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tensor/cpu/attention/flash_tile.h"
#include "tensor/cpu/core/pieces.h"
#include "tensor/kernels/blocks.h"
#include "tensor/mask/csr.h"

namespace brine::BRINE_CPU {
namespace {

// The rows of one group whose blocks are chosen together: all are in `block`.
template <class T>
struct Rows {
  int64_t bg, block, first, count;  // b G + g; ordinal of the first row; rows
  const T *q, *psi_q;               // of the first head's first row
  int64_t q_step, psi_step;         // between heads
};

struct Run {
  int64_t first, count;  // consecutive blocks of a level
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
    P_ = config.parts;
    lanes_ = whole_vectors<T>(heads_ * R);
    rows_step_ = whole_vectors<T>(R);
    d_ = scores.q.defined() ? scores.q.dim(3) : 0;
    m_ = scores.psi_q.defined() ? scores.psi_q.dim(3) : 0;
  }

  // The blocks that each row chooses: chosen()[r].
  void choose(const Rows<T>& at) {
    rows_ = at.count;
    for (int64_t r = 0; r < rows_; ++r) best_[r].clear();
    const int z = config_->level(at.block);
    load_rows(at);
    const int64_t whole = at.block >> z;
    if (m_) take_total(at, z);
    runs_.assign(1, {0, whole});
    score(at, z);
    allowed_.clear();
    add_heads();
    if (z == 0)
      return take(config_->chosen, [&](int64_t b) { return !config_->is_fixed(b, at.block); });
    take(config_->survivors * config_->chosen, [](int64_t) { return true; });
    narrow(at, z);
    score(at, 0);
    add_heads();
    take(config_->chosen, [&](int64_t b) { return !config_->is_fixed(b, at.block); });
  }

  // As above from the probabilities, `p` of the first head's first row.
  void choose_shares(const Rows<T>& at, const T* p, int64_t head_step, int64_t row_step) {
    rows_ = at.count;
    for (int64_t r = 0; r < rows_; ++r) best_[r].clear();
    runs_.assign(1, {0, at.block});
    allowed_.clear();
    sums_.assign(size_t(at.block * rows_step_), kTaken);
    for (int64_t c = 0; c < at.block; ++c) {
      for (int64_t r = 0; r < rows_; ++r) {
        T sum = 0;
        for (int64_t h = 0; h < heads_; ++h) sum += p[h * head_step + r * row_step + c];
        sums_[size_t(c * rows_step_ + r)] = sum;
      }
    }
    take(config_->chosen, [&](int64_t b) { return !config_->is_fixed(b, at.block); });
  }

  const std::vector<int64_t>& chosen(int64_t r) const { return best_[r]; }

 private:
  using Places = decltype(Vector<T>{} >= Vector<T>{});
  using Place = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;
  static constexpr T kTaken = -1;  // below all sums of probabilities

  // Queries and features as lanes, and what is constant for a row.
  void load_rows(const Rows<T>& at) {
    const int64_t slack = kWidth<T>;
    scratch_.reserve((d_ + m_) * (lanes_ + slack) + 5 * lanes_, 7);
    q_ = scratch_.take(d_ * (lanes_ + slack));
    psi_ = scratch_.take(m_ * (lanes_ + slack));
    for (T** x : {&factor_, &plain_, &prior_, &share_, &total_}) {
      *x = scratch_.take(lanes_);
    }
    std::fill_n(q_, d_ * (lanes_ + slack), T(0));
    std::fill_n(psi_, m_ * (lanes_ + slack), T(0));
    for (T* x : {factor_, plain_, prior_, share_}) std::fill_n(x, lanes_, T(0));
    auto turned = [&](T* to, const T* from, int64_t step, int64_t n) {
      for (int64_t h = 0; h < heads_; ++h) {
        for (int64_t r = 0; r < rows_; ++r) {
          for (int64_t c = 0; c < n; ++c)
            to[c * (lanes_ + slack) + h * R_ + r] = from[h * step + r * n + c];
        }
      }
    };
    turned(q_, at.q, at.q_step, d_);
    if (m_) turned(psi_, at.psi_q, at.psi_step, m_);
    const double root = 1 / std::sqrt(double(d_)), B = double(config_->block);
    for (int64_t h = 0; h < heads_; ++h) {
      const int64_t head = at.bg % G_ * heads_ + h;
      for (int64_t r = 0; r < rows_; ++r) {
        const int64_t lane = h * R_ + r;
        plain_[lane] = T(root);
        factor_[lane] = T(double(scores_->gain.template data<T>()[head]) * root);
        if (!m_) continue;
        prior_[lane] = scores_->prior_gain.template data<T>()[head];
        share_[lane] = T(double(at.first + r + 1) / B);
      }
    }
  }

  // The rows of a group, of `width` numbers.
  static const T* rows_of(const Tensor& level, int64_t bg, int64_t width) {
    return level.template data<T>() + bg * level.dim(2) * width;
  }

  // products [blocks * parts, lanes] of lanes with rows of `width` numbers, `parts` of each block.
  void multiply(T* to, const T* lanes_of, const T* rows, int64_t width, int64_t parts) const {
    for (const Run& run : runs_) {
      const int64_t count = run.count * parts;
      tile_product(count, lanes_, width,
                   Broadcast<T, false>{rows + run.first * parts * width, width},
                   Lanes<const T>{lanes_of, lanes_ + kWidth<T>}, Lanes<T>{to, lanes_});
      to += count * lanes_;
    }
  }

  int64_t candidates() const {
    int64_t n = 0;
    for (const Run& run : runs_) n += run.count;
    return n;
  }

  // total_ = psi_q . sum of psi_k over all keys that a row sees.
  void take_total(const Rows<T>& at, int z) {
    std::fill_n(total_, lanes_, T(0));
    const int64_t whole = at.block >> z;
    auto add = [&](int level, Run run) {
      runs_.assign(1, run);
      s_.resize(size_t(run.count * lanes_));
      multiply(s_.data(), psi_, rows_of(scores_->psi_sums[size_t(level)], at.bg, m_), m_, 1);
      for (int64_t c = 0; c < run.count; ++c) {
        const T* row = s_.data() + c * lanes_;
#pragma omp simd
        for (int64_t l = 0; l < lanes_; ++l) total_[l] += row[l];
      }
    };
    add(z, {0, whole});
    if (z > 0) add(0, {whole << z, at.block - (whole << z)});
    psi_sum_.assign(size_t(m_), 0.0);
    const Tensor& keys = scores_->psi_k;
    const bool summed = keys.dtype() == Dtype::f64 && keys.rank() == 3;
    int64_t next = at.block * config_->block;
    for (int64_t r = 0; r < rows_; ++r) {
      if (summed) {
        std::copy_n(keys.data<double>() + at.bg * m_, m_, psi_sum_.data());
      } else {
        for (; next <= at.first + r; ++next) {
          const T* psi = keys.template data<T>() + (at.bg * keys.dim(2) + next) * m_;
          for (int64_t i = 0; i < m_; ++i) psi_sum_[size_t(i)] += double(psi[i]);
        }
      }
      for (int64_t h = 0; h < heads_; ++h) {
        const T* x = at.psi_q + h * at.psi_step + r * m_;
        T sum = 0;
        for (int64_t i = 0; i < m_; ++i) sum += x[i] * T(psi_sum_[size_t(i)]);
        total_[h * R_ + r] += sum;
      }
    }
    for (int64_t l = 0; l < lanes_; ++l) total_[l] = total_[l] > 0 ? total_[l] : T(1);
  }

  // s_ [candidates P, lanes] = the scores of the parts of the blocks of runs_ at a level, raw_
  // those of the opinion.
  void score(const Rows<T>& at, int z) {
    const int64_t n = candidates() * P_;
    s_.resize(size_t(n * lanes_));
    const KeyParts& parts = scores_->key_parts[size_t(z)];
    multiply(s_.data(), q_, rows_of(parts.means, at.bg, d_), d_, P_);
    if (config_->opinion > 0) raw_ = s_;
    const T* logs = rows_of(parts.logs, at.bg, 1);
    int64_t c = 0;
    for (const Run& run : runs_) {
      for (int64_t i = run.first * P_; i < (run.first + run.count) * P_; ++i, ++c) {
        add_log(s_.data() + c * lanes_, factor_, logs[i]);
        if (config_->opinion > 0) add_log(raw_.data() + c * lanes_, plain_, logs[i]);
      }
    }
    if (!m_) return;
    x_.resize(size_t(candidates() * lanes_));
    multiply(x_.data(), psi_, rows_of(scores_->psi_sums[size_t(z)], at.bg, m_), m_, 1);
    const T least = T(scores_->least_share), level = T(1.0 / double(int64_t(1) << z));
    for (int64_t c = 0; c < candidates(); ++c) {
      T *x = x_.data() + c * lanes_, *s = s_.data() + c * P_ * lanes_;
#pragma omp simd
      for (int64_t l = 0; l < lanes_; ++l) {
        const T share = x[l] / total_[l];
        x[l] = math::log((share < least ? least : share) * (share_[l] * level) +
                         std::numeric_limits<T>::min());
      }
      for (int64_t p = 0; p < P_; ++p) {
#pragma omp simd
        for (int64_t l = 0; l < lanes_; ++l) s[p * lanes_ + l] += prior_[l] * x[l];
      }
    }
  }

  // Products of a part -> its scores.
  void add_log(T* s, const T* factor, T log) const {
#pragma omp simd
    for (int64_t l = 0; l < lanes_; ++l) s[l] = s[l] * factor[l] + log;
  }

  // Scores s [n P, lanes] of the parts of n blocks -> in the first part's row of a block the sum of
  // its parts' probabilities, of the blocks that a row may choose from.
  void soften(T* s, int64_t n) const {
    for (int64_t c = 0; c < n * P_ && !allowed_.empty(); ++c) {
      for (int64_t r = 0; r < rows_; ++r) {
        if (allowed_[size_t(c / P_ * R_ + r)]) continue;
        for (int64_t h = 0; h < heads_; ++h)
          s[c * lanes_ + h * R_ + r] = -std::numeric_limits<T>::infinity();
      }
    }
    for (int64_t l = 0; l < lanes_; l += kWidth<T>) soften_vector(s + l, n);
  }

  // The same for one vector of lanes, whose largest score and sum stay in registers.
  void soften_vector(T* s, int64_t n) const {
    constexpr int W = kWidth<T>;
    Vector<T> largest = Vector<T>{} + std::numeric_limits<T>::lowest(), sum{};
    for (int64_t c = 0; c < n * P_; ++c) {
      const Vector<T> x = load(s + c * lanes_);
      largest = x > largest ? x : largest;
    }
    for (int64_t c = 0; c < n; ++c) {
      T* first = s + c * P_ * lanes_;
      Vector<T> block{};
      for (int64_t p = 0; p < P_; ++p) {
        T x[W];
        store(x, load(first + p * lanes_) - largest);
#pragma omp simd
        for (int l = 0; l < W; ++l) x[l] = math::exp_nonpositive(x[l]);
        block += load(x);
      }
      store(first, block);
      sum += block;
    }
    const Vector<T> norm = sum > 0 ? 1 / sum : Vector<T>{};
    for (int64_t c = 0; c < n; ++c) {
      T* first = s + c * P_ * lanes_;
      store(first, load(first) * norm);
    }
  }

  // sums_ = probabilities summed over the heads.
  void add_heads() {
    const int64_t n = candidates(), step = P_ * lanes_;
    soften(s_.data(), n);
    if (config_->opinion > 0) {
      soften(raw_.data(), n);
      const T p = T(config_->opinion), rest = T(1 - config_->opinion);
      for (int64_t c = 0; c < n; ++c) {
        T *x = s_.data() + c * step, *other = raw_.data() + c * step;
#pragma omp simd
        for (int64_t l = 0; l < lanes_; ++l) x[l] = rest * x[l] + p * other[l];
      }
    }
    sums_.assign(size_t(n * rows_step_), kTaken);
    for (int64_t c = 0; c < n; ++c) {
      T *row = s_.data() + c * step, *to = sums_.data() + c * rows_step_;
      std::copy_n(row, R_, to);
      for (int64_t h = 1; h < heads_; ++h) {
#pragma omp simd
        for (int64_t r = 0; r < R_; ++r) to[r] += row[h * R_ + r];
      }
    }
  }

  // For each lane of n rows of vectors: where the largest number is, of equal ones the last; -1 if
  // all are taken.
  Places last_largest(const T* rows, int64_t n) const {
    constexpr int kParts = 4;  // a comparison waits for the one before it: parts do not
    const int64_t part = n / kParts;
    Vector<T> largest[kParts] = {};
    Places place[kParts];
    for (Places& x : place) x = Places{} - 1;
    auto compare = [&](int i, int64_t c) __attribute__((always_inline)) {
      const Vector<T> x = load(rows + c * rows_step_);
      const Places better = x >= largest[i];
      largest[i] = better ? x : largest[i];
      place[i] = better ? Places{} + Place(c) : place[i];
    };
    for (int64_t c = 0; c < part; ++c) {
#pragma GCC unroll 4
      for (int i = 0; i < kParts; ++i) compare(i, i * part + c);
    }
    for (int64_t c = kParts * part; c < n; ++c) compare(kParts - 1, c);
    for (int i = 1; i < kParts; ++i) {
      const Places better = (place[i] >= 0) & (largest[i] >= largest[0]);
      largest[0] = better ? largest[i] : largest[0];
      place[0] = better ? place[i] : place[0];
    }
    return place[0];
  }

  // best_[r] = the `limit` blocks with the largest sums, of equal ones the later: one pass over the
  // candidates for each, all rows at once. Overwrites sums_.
  template <class May>
  void take(int64_t limit, May may) {
    constexpr int64_t W = kWidth<T>;
    for (int64_t r = 0; r < rows_; ++r) best_[r].clear();
    blocks_.clear();
    for (const Run& run : runs_) {
      for (int64_t b = run.first; b < run.first + run.count; ++b) blocks_.push_back(b);
    }
    const int64_t n = int64_t(blocks_.size());
    for (int64_t c = 0; c < n; ++c) {
      T* row = sums_.data() + c * rows_step_;
      if (!may(blocks_[size_t(c)])) std::fill_n(row, R_, kTaken);
      for (int64_t r = 0; r < R_ && !allowed_.empty(); ++r) {
        if (!allowed_[size_t(c * R_ + r)]) row[r] = kTaken;
      }
    }
    for (int64_t first = 0; first < rows_; first += W) {
      for (int64_t pick = 0; pick < std::min(limit, n); ++pick) {
        const Places place = last_largest(sums_.data() + first, n);
        for (int64_t l = 0; l < std::min(W, rows_ - first); ++l) {
          if (place[l] < 0) continue;
          sums_[size_t(place[l] * rows_step_ + first + l)] = kTaken;
          best_[first + l].push_back(blocks_[size_t(place[l])]);
        }
      }
    }
  }

  // The blocks of the super-blocks of each row's best_, of the incomplete one and the fixed blocks
  // become the candidates.
  void narrow(const Rows<T>& at, int z) {
    const int64_t whole = at.block >> z;
    survives_.assign(size_t((whole + 1) * R_), 0);
    std::fill_n(survives_.begin() + whole * R_, R_, uint8_t(1));
    for (int64_t r = 0; r < rows_; ++r) {
      for (const int64_t best : best_[r]) survives_[size_t(best * R_ + r)] = 1;
    }
    runs_.clear();
    allowed_.clear();
    for (int64_t super = 0; super <= whole; ++super) {
      const uint8_t* row = survives_.data() + super * R_;
      const bool any = std::find(row, row + rows_, 1) != row + rows_;
      const int64_t end = std::min(at.block, (super + 1) << z);
      for (int64_t b = super << z; b < end; ++b) {
        const bool fixed = config_->is_fixed(b, at.block);
        if (!any && !fixed) continue;
        if (!runs_.empty() && runs_.back().first + runs_.back().count == b) {
          ++runs_.back().count;
        } else {
          runs_.push_back({b, 1});
        }
        for (int64_t r = 0; r < R_; ++r) allowed_.push_back(fixed || row[r]);
      }
    }
  }

  const BlockScores* scores_ = nullptr;
  const BlockConfig* config_ = nullptr;
  int64_t G_ = 1, heads_ = 1, R_ = 1, P_ = 1, lanes_ = 0, rows_step_ = 0, d_ = 0, m_ = 0, rows_ = 0;
  Scratch<T> scratch_;
  T *q_ = nullptr, *psi_ = nullptr, *factor_ = nullptr, *plain_ = nullptr, *prior_ = nullptr,
    *share_ = nullptr, *total_ = nullptr;
  std::vector<Run> runs_;
  std::vector<T> s_, raw_, x_, sums_;         // sums_ [candidates, rows_step_]
  std::vector<double> psi_sum_;               // [m] of the keys of the block up to the row
  std::vector<int64_t> blocks_;               // the candidates
  std::vector<uint8_t> allowed_, survives_;   // [candidates, R]; empty: all
  std::vector<int64_t> best_[kMostTileRows];  // largest first
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

}  // namespace

void select_blocks(BlockMask mask, BlockScores scores, BlockConfig config, Visibility visible) {
  const Tensor& q = scores.shares.defined() ? scores.shares : scores.q;
  const int64_t B = q.dim(0), H = q.dim(1), rows = q.dim(2), G = mask.counts.dim(1);
  const int64_t R = config.tile, tiles = mask.tile_count(), room = mask.capacity();
  const RowWidths widths(visible, std::numeric_limits<int64_t>::max());
  const int64_t d = scores.shares.defined() ? 1 : scores.q.dim(3);
  const int64_t work = B * H * rows * config.columns * d;
  dispatch_float(q.dtype(), [&]<class T>() {
    for_pieces(B * G * tiles, work, [&](int64_t i) {
      // Long tiles first, so that threads finish at similar times.
      const int64_t bg = i % (B * G), n = tiles - 1 - i / (B * G), b = bg / G;
      const int64_t place = mask.tiles.defined() ? mask.tiles.data<int32_t>()[n] : n;
      const int64_t first = place * R, block = first / config.block;
      const int64_t length = visible.lengths.defined() ? widths.length(b) : rows + first;
      const int64_t count = std::clamp<int64_t>(std::min(length - first, rows - n * R), 0, R);
      int32_t& kept_count = mask.counts.data<int32_t>()[bg * tiles + n];
      if (count == 0) return (void)(kept_count = 0);
      const int64_t head = b * H + bg % G * (H / G);
      thread_local Chooser<T> chooser;
      chooser.begin(scores, config, H, G, R);
      Rows<T> at{.bg = bg,
                 .block = block,
                 .first = first,
                 .count = count,
                 .q = nullptr,
                 .psi_q = nullptr,
                 .q_step = 0,
                 .psi_step = 0};
      if (scores.shares.defined()) {
        const int64_t N = q.dim(3);
        chooser.choose_shares(at, q.data<T>() + (head * rows + n * R) * N, rows * N, N);
      } else {
        at.q = q.data<T>() + (head * rows + n * R) * d;
        at.q_step = rows * d;
        if (scores.psi_q.defined()) {
          const int64_t m = scores.psi_q.dim(3);
          at.psi_q = scores.psi_q.data<T>() + (head * rows + n * R) * m;
          at.psi_step = rows * m;
        }
        chooser.choose(at);
      }
      TileUnion kept(block + 1);
      add_fixed(kept, config, block);
      for (int64_t r = 0; r < count; ++r) {
        for (const int64_t b : chooser.chosen(r)) kept.add(b, r);
      }
      kept_count = int32_t(kept.write(mask.entries.data<int32_t>() + (bg * tiles + n) * room));
    });
  });
}

void select_blocks_step(BlockMask mask, BlockScores scores, BlockConfig config, Tensor width) {
  const Tensor& q = scores.q;
  const int64_t B = q.dim(0), H = q.dim(1), d = q.dim(3), G = mask.counts.dim(1);
  const int64_t room = mask.capacity();
  dispatch_float(q.dtype(), [&]<class T>() {
    for_pieces(B * G, B * H * config.columns * d, [&](int64_t bg) {
      const int64_t b = bg / G, t = width.data<int64_t>()[b] - 1, block = t / config.block;
      const int64_t head = b * H + bg % G * (H / G), row = t % config.tile;
      thread_local Chooser<T> chooser;
      chooser.begin(scores, config, H, G, 1);
      Rows<T> at{.bg = bg,
                 .block = block,
                 .first = t,
                 .count = 1,
                 .q = q.data<T>() + head * d,
                 .psi_q = nullptr,
                 .q_step = d,
                 .psi_step = 0};
      if (scores.psi_q.defined()) {
        at.psi_step = scores.psi_q.dim(3);
        at.psi_q = scores.psi_q.data<T>() + head * at.psi_step;
      }
      chooser.choose(at);
      int32_t* entries = mask.entries.data<int32_t>() + bg * room;
      int32_t& count = mask.counts.data<int32_t>()[bg];
      TileUnion kept(block + 1);
      for (int32_t e = 0; row > 0 && e < count; ++e) {
        kept.add(entry_block(entries[e]), entry_row(entries[e]));
      }
      add_fixed(kept, config, block);
      for (const int64_t chosen : chooser.chosen(0)) kept.add(chosen, row);
      count = int32_t(kept.write(entries));
    });
  });
}

}  // namespace brine::BRINE_CPU
