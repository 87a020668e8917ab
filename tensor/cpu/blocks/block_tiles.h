// Attention of a tile of rows over a list of key blocks: which keys its lanes read and see. Both
// directions and every type of inputs share it.
//
// The rows of several heads of a group are the lanes of vectors: lane h R + r is row r of head h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

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
  LaneRows(const BlockTile& tile, int64_t lanes, int64_t step) : lanes_(lanes), step_(step) {
    for (int64_t l = 0; l < lanes; ++l) row_[l] = T(l % tile.R);
  }
  // Sets the lanes of rows before `row` in `count` rows of lanes, `step` apart.
  void hide(T* s, int64_t count, int64_t row, T value) const {
    const T end = T(row);
    for (int64_t n = 0; n < count; ++n, s += step_) {
#pragma omp simd
      for (int64_t l = 0; l < lanes_; ++l) s[l] = row_[l] < end ? value : s[l];
    }
  }

 private:
  int64_t lanes_, step_;
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
  // Rows of q in tile n, with those of padding.
  int64_t rows_in(int64_t n) const { return std::clamp<int64_t>(rows - n * R, 0, R); }
  // Pairs of a lane and a key in all tiles, roughly.
  int64_t pairs() const { return B * H * rows * 4 * mask.block; }

  const BlockMask& mask;
  const Visibility& visible;
  int64_t B, H, G, rows, halves, R, tiles, heads, passes = 1, per_pass = 1;
};

}  // namespace brine::BRINE_CPU
