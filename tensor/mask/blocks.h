// Masks of key blocks at fixed places (docs/method.md section 8): their settings, and the lists of
// blocks that tiles of rows keep. Nothing here is differentiated.
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
  int64_t block = 32;     // B: keys of a block
  int64_t parts = 1;      // P: clusters of a block's keys, each scored by its mean; at most block
  int64_t chosen = 15;    // n: blocks that a row chooses
  int64_t sinks = 1;      // first blocks that every row keeps
  int64_t local = 1;      // blocks before the block of a row that it keeps
  int64_t tile = 16;      // R: rows that share upwards what they choose
  int64_t columns = 512;  // K: blocks that are scored at once
  int64_t survivors = 2;  // super-blocks for each chosen block whose blocks are scored
  double opinion = 0;     // share of softmax(q . mean key / sqrt(d)) in the choice

  // The smallest z with at most K super-blocks of 2^z blocks before block `row_block`.
  BRINE_HD int level(int64_t row_block) const {
    int z = 0;
    while ((row_block >> z) > columns) ++z;
    return z;
  }
  // Whether all rows of block `row_block` keep block b, whatever the estimate.
  BRINE_HD bool is_fixed(int64_t b, int64_t row_block) const {
    return b < sinks || b >= row_block - local;
  }
  // The most blocks that a tile of one of `blocks` blocks keeps.
  int64_t most_kept(int64_t blocks) const {
    return std::min(blocks, sinks + local + 1 + tile * chosen);
  }
};

inline constexpr int64_t kMostTileRows = 64;
// In place of the logarithm of 0 keys: exp() of a score with it is 0 next to any other.
inline constexpr double kNoKeysLog = -1e4;

// The blocks of every tile and group, in ascending order. In decoding there is one tile for each
// sequence, that of its newest token.
struct BlockMask {
  Tensor counts;   // i32 [B, G, tiles]
  Tensor entries;  // i32 [B, G, tiles, capacity]: block_entry(block, first row of the tile)
  Tensor tiles;    // i32 [tiles] the places of the tiles, on the CPU; undefined: 0, 1, 2...
  int64_t block = 0, tile = 0;  // B, R

  int64_t tile_count() const { return counts.dim(2); }
  int64_t capacity() const { return entries.dim(3); }
};

// A block that the rows of a tile from `row` on keep.
BRINE_HD int32_t block_entry(int64_t block, int64_t row) { return int32_t(block * 64 + row); }
BRINE_HD int64_t entry_block(int32_t entry) { return entry / 64; }
BRINE_HD int64_t entry_row(int32_t entry) { return entry % 64; }

// Clusters of keys: their means [B, G, n, d], the logarithms of their numbers of keys [B, G, n].
struct KeyParts {
  Tensor means, logs;
};

// What the scores of blocks are computed from, of rows of tiles in the order of the mask.
struct BlockScores {
  Tensor q;                              // [B, H, rows, d]
  Tensor gain;                           // [H] of the products with mean keys
  std::vector<KeyParts> key_parts = {};  // of complete super-blocks, by level: n >= P blocks / 2^z
  // Of the learned prior, or undefined: psi [B, H, rows, m], its gain [H], sums of whole
  // super-blocks.
  Tensor psi_q = {}, prior_gain = {};
  std::vector<Tensor> psi_sums = {};
  Tensor psi_k = {};  // [B, G, T, m] of every key; or of one row each f64 [B, G, m], the sum of
                      // those of its block
  double least_share = 0;
  bool half = false;   // products of q and mean keys may be of numbers rounded to bf16, on a GPU
  Tensor shares = {};  // [B, H, rows, blocks]: the probabilities; then only the groups of psi_k
                       // are read
};

}  // namespace brine
