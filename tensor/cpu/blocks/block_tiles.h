// Attention of a tile of rows over a list of key blocks: which keys its lanes read and see, the
// passes over all tiles, the sums of gradients. Both directions and every type of inputs share it.
//
// The rows of several heads of a group are the lanes of vectors: lane h R + r is row r of head h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "tensor/base/math.h"
#include "tensor/cpu/attention/cached_rows.h"
#include "tensor/cpu/attention/flash_softmax.h"
#include "tensor/cpu/core/pieces.h"
#include "tensor/mask/blocks.h"
#include "tensor/mask/csr.h"

namespace brine::BRINE_CPU {

// The rows [first, first + rows) of a tile of one group, or of its half from row `offset` on,
// `heads` heads from bh = b H + h on; they are rows row0, row0 + 1... of q.
struct BlockTile {
  int64_t bh, bg, heads, row0, first, rows, R;
  const int32_t* entries;
  int64_t count;
  int64_t offset = 0;
  int64_t lanes() const { return heads * R; }
  bool keeps(int64_t e) const { return entry_row(entries[e]) < offset + R; }
  // The first of these rows that keeps an entry.
  int64_t row(int64_t e) const { return std::max<int64_t>(entry_row(entries[e]) - offset, 0); }
};

// Cuts the keys of a tile into chunks of at most kFlashKeys keys, in ascending order. Where all are
// kept the chunks are those of exact attention.
class KeyChunks {
 public:
  void begin(const BlockTile& tile, int64_t block) {
    tile_ = &tile;
    block_ = block;
    runs_.clear();
    const int64_t end = tile.first + tile.rows;
    for (int64_t e = 0; e < tile.count; ++e) {
      if (!tile.keeps(e)) continue;
      const int64_t at = entry_block(tile.entries[e]) * block;
      runs_.add(at, std::min(at + block, end) - at);
    }
    run_ = 0;
    used_ = 0;
    entry_ = 0;
  }

  // The next chunk; false when there is none.
  bool next() {
    count_ = keys_ = 0;
    while (run_ < runs_.runs.size() && keys_ < kFlashKeys) {
      const KeyRun& run = runs_.runs[run_];
      const int64_t n = std::min(run.count - used_, kFlashKeys - keys_);
      chunk_[count_++] = {run.first + used_, n};
      keys_ += n;
      used_ += n;
      if (used_ == run.count) ++run_, used_ = 0;
    }
    return keys_ > 0;
  }

  int64_t keys() const { return keys_; }
  const KeyRun* begin() const { return chunk_; }
  const KeyRun* end() const { return chunk_ + count_; }

  // f(n, count, rows): the first `rows` rows of the tile do not see the keys [n, n + count) of the
  // chunk. Chunks ascend.
  template <class F>
  void each_hidden(F f) {
    const BlockTile& tile = *tile_;
    int64_t n = 0;
    for (const KeyRun& run : *this) {
      for (int64_t j = run.first; j < run.first + run.count;) {
        while (entry_block(tile.entries[entry_]) < j / block_) ++entry_;
        const int64_t row = tile.row(entry_);
        const int64_t stop = std::min(run.first + run.count, (j / block_ + 1) * block_);
        if (stop - 1 <= tile.first) {
          if (row > 0) f(n, stop - j, row);
        } else {
          for (int64_t i = j; i < stop; ++i) {
            const int64_t before = std::max(row, i - tile.first);
            if (before > 0) f(n + i - j, 1, before);
          }
        }
        n += stop - j;
        j = stop;
      }
    }
  }

 private:
  const BlockTile* tile_ = nullptr;
  int64_t block_ = 1;
  KeyRuns runs_;  // before the end of the tile's rows
  size_t run_ = 0;
  int64_t used_ = 0, entry_ = 0;
  KeyRun chunk_[kFlashKeys] = {};
  int64_t count_ = 0, keys_ = 0;
};

// The row of the tile that each lane is, for lanes that are kept as vectors.
template <class T>
class LaneRows {
 public:
  LaneRows(const BlockTile& tile, int64_t lanes) : lanes_(lanes) {
    for (int64_t l = 0; l < lanes; ++l) row_[l] = T(l % tile.R);
  }
  // Sets the lanes of rows before `row` in `count` rows of lanes.
  void hide(T* s, int64_t count, int64_t row, T value) const {
    const T end = T(row);
    for (int64_t n = 0; n < count; ++n, s += lanes_) {
#pragma omp simd
      for (int64_t l = 0; l < lanes_; ++l) s[l] = row_[l] < end ? value : s[l];
    }
  }

 private:
  int64_t lanes_;
  alignas(64) T row_[kFlashQueries];
};

// Rows of d numbers as rows of `wide`, whole vectors: themselves, or their copies in `room`, whose
// other numbers are 0.
template <class T>
const T* whole_rows(const T* rows, int64_t count, int64_t d, int64_t wide, T* room) {
  if (wide == d) return rows;
  for (int64_t n = 0; n < count; ++n) std::copy_n(rows + n * d, d, room + n * wide);
  return room;
}

// The sums dk and dv of pieces that divide the tiles of a group: [B G pieces, T, wide] each.
template <class T>
struct BlockGradients {
  BlockGradients(const Tensor& dk, const Tensor& dv, int64_t wide, int64_t tiles)
      : to_k(dk), to_v(dv), wide(wide) {
    const Tensor& any = dk.defined() ? dk : dv;
    if (!any.defined()) return;
    const int64_t groups = any.dim(0) * any.dim(1);
    // As many tasks as let threads finish at similar times; few tiles do not pay for another sum.
    constexpr int64_t kTasks = 24, kMaxPieces = 6, kTiles = 32;
    length = any.dim(2);
    pieces = std::clamp<int64_t>(std::min((kTasks + groups - 1) / groups, tiles / kTiles), 1,
                                 kMaxPieces);
    in_place = pieces == 1 && wide == any.dim(3);
    for (auto [to, sum] : {std::pair{dk, &sum_k}, {dv, &sum_v}}) {
      if (!to.defined()) continue;
      *sum = in_place ? to : Tensor::empty({groups * pieces, length, wide}, DtypeOf<T>::value);
    }
  }

  T* dk(int64_t piece) const { return at(sum_k, piece); }
  T* dv(int64_t piece) const { return at(sum_v, piece); }
  void clear(int64_t piece) const {
    for (T* sum : {dk(piece), dv(piece)}) {
      if (sum) std::fill_n(sum, length * wide, T(0));
    }
  }
  // Adds the pieces in their order.
  void finish() const {
    if (in_place) return;
    for (auto [to, sum] : {std::pair{to_k, sum_k}, {to_v, sum_v}}) {
      if (!to.defined()) continue;
      const int64_t d = to.dim(3);
      const T* from = sum.template data<T>();
      T* out = to.template data<T>();
      parallel_for(to.rows(), 64, [&, from, out](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const T* row = from + (r / length * pieces * length + r % length) * wide;
          std::copy_n(row, d, out + r * d);
          for (int64_t p = 1; p < pieces; ++p) {
#pragma omp simd
            for (int64_t c = 0; c < d; ++c) out[r * d + c] += row[p * length * wide + c];
          }
        }
      });
    }
  }

  Tensor to_k, to_v, sum_k, sum_v;
  int64_t wide, length = 0, pieces = 1;
  bool in_place = false;

 private:
  T* at(const Tensor& sum, int64_t piece) const {
    return sum.defined() ? sum.template data<T>() + piece * length * wide : nullptr;
  }
};

// s [keys, lanes], scores, become probabilities, and ds, gradients of probabilities, those of
// scores.
template <class T>
void differentiate_scores(T* s, T* ds, int64_t keys, int64_t lanes, T scale, const T* lse,
                          const T* dot) {
  for (int64_t j = 0; j < keys; ++j, s += lanes, ds += lanes) {
#pragma omp simd
    for (int64_t l = 0; l < lanes; ++l) {
      s[l] = math::exp_nonpositive(s[l] * scale - lse[l]);
      ds[l] = s[l] * (ds[l] * scale - dot[l]);
    }
  }
}

// The numbers of a mask's tiles, and how they are divided into passes of at most kFlashQueries
// lanes. Where half of a tile's rows fill three vectors, tiles are halves: the first ones read
// fewer keys (a tenth of all, on texts).
struct BlockPasses {
  BlockPasses(const BlockMask& mask, const Visibility& visible, int64_t B, int64_t H, int64_t G,
              int64_t rows)
      : mask(mask),
        visible(visible),
        B(B),
        H(H),
        G(G),
        rows(rows),
        halves(mask.tile % (2 * kWidth<float>) == 0 && H / G * mask.tile >= 6 * kWidth<float> ? 2
                                                                                              : 1),
        R(mask.tile / halves),
        tiles(mask.tile_count() * halves),
        heads(H / G) {
    const int64_t max_heads = std::max<int64_t>(1, kFlashQueries / R);
    passes = (heads + max_heads - 1) / max_heads;
    per_pass = (heads + passes - 1) / passes;
  }

  // Tile n of group bg, heads of pass p; rows = 0: padding.
  BlockTile tile(int64_t bg, int64_t n, int64_t p) const {
    const int64_t whole = n / halves, offset = n % halves * R;
    const int64_t number = mask.tiles.defined() ? mask.tiles.data<int32_t>()[whole] : whole;
    const int64_t b = bg / G, head = p * per_pass, first = number * mask.tile + offset;
    const int64_t end = visible.lengths.defined() ? visible.lengths.data<int64_t>()[b] : first + R;
    const int64_t i = bg * mask.tile_count() + whole;
    return {.bh = b * H + bg % G * heads + head,
            .bg = bg,
            .heads = std::min(per_pass, heads - head),
            .row0 = n * R,
            .first = first,
            .rows = std::clamp<int64_t>(std::min(end - first, rows - n * R), 0, R),
            .R = R,
            .entries = mask.entries.data<int32_t>() + i * mask.capacity(),
            .count = mask.counts.data<int32_t>()[i],
            .offset = offset};
  }
  // In parallel f(tile, row, y, lse) for the tiles with tokens, y and lse those of the first head's
  // row; rows of padding of y [B, H, R, d] and lse [B, H, R] become 0.
  template <class T, class F>
  void forward(const Tensor& y, const Tensor& lse, F f) const {
    for_pieces(B * G * passes * tiles, pairs() * y.dim(3), [&](int64_t i) {
      const int64_t bgp = i / tiles;
      run_tile<T>(bgp / passes, i % tiles, bgp % passes, y, lse, f);
    });
  }
  // The same for a backward pass: f(tile, row, dq, dk, dv) adds to dk and dv of its piece of
  // `sums`.
  template <class T, class F>
  void backward(const Tensor& dq, const BlockGradients<T>& sums, int64_t d, F f) const {
    for_pieces(B * G * sums.pieces, pairs() * d, [&](int64_t i) {
      sums.clear(i);
      for (int64_t n = i % sums.pieces; n < tiles; n += sums.pieces) {
        for (int64_t p = 0; p < passes; ++p) {
          run_tile<T>(i / sums.pieces, n, p, dq, {},
                      [&](const BlockTile& at, int64_t row, T* to, T*) {
                        f(at, row, to, sums.dk(i), sums.dv(i));
                      });
        }
      }
    });
    sums.finish();
  }
  // Pairs of a lane and a key in all tiles, roughly.
  int64_t pairs() const { return B * H * rows * 4 * mask.block; }

  const BlockMask& mask;
  const Visibility& visible;
  int64_t B, H, G, rows, halves, R, tiles, heads, passes = 1, per_pass = 1;

 private:
  template <class T, class F>
  void run_tile(int64_t bg, int64_t n, int64_t p, const Tensor& y, const Tensor& lse, F&& f) const {
    const BlockTile at = tile(bg, n, p);
    const int64_t row = at.bh * rows + at.row0, d = y.defined() ? y.dim(3) : 0;
    T* to = y.defined() ? y.data<T>() + row * d : nullptr;
    T* sums = lse.defined() ? lse.data<T>() + row : nullptr;
    if (at.rows > 0) f(at, row, to, sums);
    const int64_t left = std::clamp<int64_t>(rows - n * R, 0, R) - at.rows;  // of padding
    for (int64_t h = 0; left > 0 && h < at.heads; ++h) {
      if (to) std::fill_n(to + (h * rows + at.rows) * d, left * d, T(0));
      if (sums) std::fill_n(sums + h * rows + at.rows, left, T(0));
    }
  }
};

}  // namespace brine::BRINE_CPU
