// The length of the chunks of causal linear attention, and how its tiles are spread over blocks: by
// counts of multiply-adds and bytes, on the CPU.
#pragma once

#include <cstdint>

namespace brine::cuda::chunked {

constexpr int kTile = 64;        // rows and columns of a block's product
constexpr int64_t kKept = 3;     // tiles of a triangle that a block keeps: with slices, in 64 KB
constexpr int64_t kLongest = 4;  // tiles of rows in a chunk, unless memory is short

// What the cut of the work depends on besides sizes. Tests change it: results keep their bits.
struct ChunkLimits {
  int64_t kept = kKept;
  int64_t blocks = 1024;  // that occupy a device
};
inline ChunkLimits& chunk_limits() {
  static ChunkLimits limits;
  return limits;
}

inline int64_t tiles_in(int64_t n) { return (n + kTile - 1) / kTile; }

// What a causal pass in f32 costs for each row of a group of heads: multiply-adds, and bytes of
// states.
struct ChunkCost {
  double products, bytes;

  // A device does 9 to 17 multiply-adds in f32 while it moves a byte, by data sheets from T4 to
  // H200 (three products of mma.sync each, or CUDA cores).
  double total() const { return products + 12 * bytes; }
};

// A row's products with `across` tiles of columns, of rows of `depth` numbers: with the state, and
// with its chunk of n tiles of rows in each of `sets`, where the triangle is made once if it is
// kept and for every tile of columns else.
inline double tile_products(int64_t across, int64_t depth, int64_t sets, int64_t n) {
  double sum = 0;
  for (int64_t seen = sets; seen <= sets * n; seen += sets) {
    const int64_t made = seen <= kKept ? 1 : across;
    sum += double(across * depth + seen * (made * depth + across * kTile));
  }
  return sum / double(n) * kTile;
}

// Of chunks of n tiles. Products are computed in slices of 16 and tiles of 64. Forward a state is
// written, read and written by the sum over the chunks, and read; backward there are two of them,
// and two kernels read the second.
inline ChunkCost chunk_cost(int64_t m, int64_t e, int64_t heads, bool backward, int64_t n) {
  auto deep = [](int64_t k) { return (k + 15) / 16 * 16; };
  const int64_t tall = tiles_in(m), wide = tiles_in(e);
  const double state = double(tall * kTile * wide * kTile);
  const double bytes = double(m * e * int64_t(sizeof(float))) / double(n * kTile);
  const double forward = double(heads) * tile_products(wide, deep(m), 1, n) + state;
  if (!backward) return {forward, 4 * bytes};
  const double queries = double(heads) * tile_products(tall, deep(e), 1, n);
  const double keys = tile_products(tall, deep(e), heads, n);
  const double values = tile_products(wide, deep(m), heads, n);
  return {queries + keys + values + double(1 + heads) * state, 9 * bytes};
}

// Rows of a causal chunk: of the least cost.
inline int64_t causal_chunk(int64_t m, int64_t e, int64_t heads, bool backward) {
  int64_t best = 1;
  for (int64_t n = 2; n <= kLongest; ++n) {
    const double cost = chunk_cost(m, e, heads, backward, n).total();
    if (cost < chunk_cost(m, e, heads, backward, best).total()) best = n;
  }
  return best * kTile;
}

// Columns that a block computes: all, so that it makes its triangle once, or as many as leave the
// device enough blocks for `rows` tiles of rows.
inline int64_t block_columns(int64_t rows, int64_t columns, bool causal) {
  const int64_t wide = tiles_in(columns);
  int64_t tiles = causal && wide > 1 ? wide : 1;
  while (tiles > 1 && rows * ((wide + tiles - 1) / tiles) < chunk_limits().blocks)
    tiles = (tiles + 1) / 2;
  return tiles * kTile;
}

}  // namespace brine::cuda::chunked
