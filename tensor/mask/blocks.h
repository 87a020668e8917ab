// Masks of key blocks at fixed positions (docs/method.md section 8): their settings, and the lists
// of blocks that tiles of rows keep. Nothing here is differentiated.
//
// Block b of a sequence is its keys [b B, (b + 1) B), tile i its rows [i R, (i + 1) R). R divides
// B, so all rows of a tile are in one block o. A group is the heads that share keys and values:
// they keep the same blocks.
#pragma once

#include <algorithm>
#include <vector>

#include "tensor/base/math.h"
#include "tensor/types.h"

namespace brine {

struct BlockConfig {
  int64_t block = 32;       // B: keys of a block
  int64_t chosen = 15;      // n: blocks that a row chooses; 0: a window
  int64_t sinks = 1;        // first blocks that every row keeps
  int64_t local = 1;        // blocks before the block of a row that it keeps
  int64_t tile = 32;        // R: rows that share upwards what they choose
  int64_t candidates = 96;  // blocks of a row whose keys are scored
  int64_t columns = 1024;   // K: blocks that the first pass scores at once

  // The smallest z with at most K super-blocks of 2^z blocks before block `row_block`.
  BRINE_HD int level(int64_t row_block) const {
    int z = 0;
    while ((row_block >> z) > columns) ++z;
    return z;
  }
  // Whether all rows of block `row_block` keep block b, whatever the scores.
  BRINE_HD bool is_fixed(int64_t b, int64_t row_block) const {
    return b < sinks || b >= row_block - local;
  }
  // The complete blocks before `row_block` that are not fixed: a row may choose these.
  BRINE_HD int64_t free_blocks(int64_t row_block) const {
    const int64_t n = row_block - sinks - local;
    return n > 0 ? n : 0;
  }
  // The blocks that every row keeps, with its own.
  int64_t fixed() const { return sinks + local + 1; }
  // These settings for rows that keep k keys by themselves, in whole blocks, fixed ones included; a
  // k of no more than the fixed ones is a window.
  BlockConfig keeping(int64_t k) const {
    BlockConfig out = *this;
    out.chosen = std::max<int64_t>(0, k / block + (k % block != 0) - fixed());
    return out;
  }
  // The most blocks that a tile of one of `blocks` blocks keeps.
  int64_t max_kept(int64_t blocks) const {
    return std::min(blocks, fixed() + tile * std::min(blocks, chosen));
  }
};

inline constexpr int64_t kMaxTileRows = 64;

// The blocks of every tile and group, in ascending order. In decoding there is one tile for each
// sequence, that of its newest token.
struct BlockMask {
  Tensor counts;   // i32 [B, G, tiles]
  Tensor entries;  // i32 [B, G, tiles, capacity]: block_entry(block, first row of the tile)
  Tensor tiles;    // i32 [tiles] the numbers of the tiles, on the CPU; undefined: 0, 1, 2...
  int64_t block = 0, tile = 0;  // B, R

  int64_t tile_count() const { return counts.dim(2); }
  int64_t capacity() const { return entries.dim(3); }
};

// A block that the rows of a tile from `row` on keep.
BRINE_HD int32_t block_entry(int64_t block, int64_t row) { return int32_t(block * 64 + row); }
BRINE_HD int64_t entry_block(int32_t entry) { return entry / 64; }
BRINE_HD int64_t entry_row(int32_t entry) { return entry % 64; }

// Copies of the keys of N complete blocks in 4 bits, and the moments of blocks (docs/method.md
// section 8.2).
struct KeyCodes {
  // u8 [B, G, N, block, ceil(d / 2)]: z + 8 of channel c in the low half of byte c, of channel
  // ceil(d / 2) + c in the high half.
  Tensor codes;
  Tensor steps;  // a [B, G, N, block]
  // By level z, of complete super-blocks of 2^z blocks [B, G, N / 2^z, 2 d]: their mean key, then
  // the deviations of their keys.
  std::vector<Tensor> moments = {};
};

// What blocks are chosen by, of rows of tiles in the order of the mask.
struct BlockScores {
  Tensor q = {};          // [B, H, rows, d]
  Tensor key_scale = {};  // sigma [G, d]
  KeyCodes keys = {};
  // Instead of all these: shares of attention [B, H, rows, blocks] of `groups` groups of heads.
  Tensor shares = {};
  int64_t groups = 0;
};

// Every device computes scores in the same order, so it chooses the same blocks: q is scaled by
// log2(e) / sqrt(d) first and shares are powers of two, a product of f32 is one chain of fused
// multiply-adds over the channels, a sum over the keys of a block or over blocks has eight strands.
// Strand i sums numbers i, i + 8... in this order (blocks by their number), then neighbours are
// added, ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)). Heads are added in their order.
inline constexpr int kStrands = 8;

}  // namespace brine
