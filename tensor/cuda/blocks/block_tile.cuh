// Attention of tiles of rows over lists of key blocks: which rows and keys the lanes of a thread
// block have, and their loads. Both directions share it.
//
// Lane l of a pass is row l % span of head l / span: the rows of a tile, or of a part of it if
// there are more than lanes, for several heads of a group.
#pragma once

#include <limits>

#include "tensor/cuda/attention/flash_tile.cuh"
#include "tensor/mask/blocks.h"

namespace brine::cuda {

// A mask on the device and the sizes of a call.
struct BlockSizes {
  const int32_t *counts, *entries, *numbers;  // numbers: of tiles; null: 0, 1, 2...
  const int64_t* lengths;                     // null: every row of a tile is valid
  int64_t H, heads, groups;                   // heads: of a group; groups: B G
  int64_t rows, T, d;                         // rows of q, keys
  int64_t tiles, capacity, block, R;
  int span, parts, per_pass, passes;  // as in BlockPasses of the CPU; parts of a tile's rows
  bool packed;

  __device__ int64_t number(int64_t n) const { return numbers ? numbers[n] : n; }
  // Rows of tile n that are not padding.
  __device__ int64_t valid(int64_t b, int64_t n) const {
    const int64_t first = number(n) * R, in = rows - n * R < R ? rows - n * R : R;
    const int64_t left = lengths ? lengths[b] - first : R;
    return left < 0 ? 0 : (left < in ? left : in);
  }
  __device__ const int32_t* list(int64_t bg, int64_t n) const {
    return entries + (bg * tiles + n) * capacity;
  }
  __device__ int64_t count(int64_t bg, int64_t n) const { return counts[bg * tiles + n]; }
  __device__ int64_t sequence(int64_t bg) const { return bg * heads / H; }
  // A thread block for every pass over a tile.
  dim3 grid() const { return dim3(blocks_for(groups * tiles * passes, 1)); }
};

// BlockSizes of a call; keeps what it uploads.
class BlockCall {
 public:
  BlockCall(const BlockMask& mask, const Visibility& visible, const Tensor& q, const Tensor& k)
      : mask_(mask),
        numbers_(mask.tiles, q.device()),
        lengths_(visible.lengths, q.device()),
        q_(q.shape()),
        k_(k.shape()) {}

  // For layouts of this many rows.
  BlockSizes sizes(int64_t lanes, bool packed) const {
    const int64_t heads = q_[1] / k_[1], span = std::min(mask_.tile, lanes),
                  max_heads = lanes / span;
    const int64_t passes = (heads + max_heads - 1) / max_heads,
                  parts = (mask_.tile + span - 1) / span;
    return {.counts = mask_.counts.data<int32_t>(),
            .entries = mask_.entries.data<int32_t>(),
            .numbers = numbers_.data<int32_t>(),
            .lengths = lengths_.data<int64_t>(),
            .H = q_[1],
            .heads = heads,
            .groups = q_[0] * k_[1],
            .rows = q_[2],
            .T = k_[2],
            .d = q_[3],
            .tiles = mask_.tile_count(),
            .capacity = mask_.capacity(),
            .block = mask_.block,
            .R = mask_.tile,
            .span = int(span),
            .parts = int(parts),
            .per_pass = int((heads + passes - 1) / passes),
            .passes = int(passes * parts),
            .packed = packed};
  }

 private:
  const BlockMask& mask_;
  OnDevice numbers_, lengths_;
  Shape q_, k_;
};

// Forward, of q, k, v in 16 bits with their products on tensor cores, `lanes` rows of a tile for
// all heads of a group. False if heads are too wide, their rows not whole packs, or shared memory
// too small; nothing is computed then.
bool block_attention_half(Tensor y, Tensor lse, Tensor q, Tensor k, Tensor v, const BlockCall& call,
                          int64_t lanes, double scale);
// The gradients of the same, as block_attention_backward().
bool block_attention_backward_half(Tensor dq, Tensor dk, Tensor dv, Tensor dy, Tensor q, Tensor k,
                                   Tensor v, Tensor y, Tensor lse, const BlockMask& mask,
                                   const BlockCall& call, double scale);

// The pass of a thread block in a grid of tiles x groups x passes. Passes of a tile are neighbours:
// they read the same keys. The long lists of late tiles come first.
struct BlockTile {
  int64_t bg, bh, row0, first;  // bh: of the first lane; its row of q and the row's ordinal
  int r0, rows, q_rows, heads;  // first row in the tile; valid rows, rows of q, heads of the pass
  const int32_t* entries;
  int64_t keys;  // of the list, before the last valid row

  __device__ explicit BlockTile(const BlockSizes& at) {
    const int64_t item = int64_t(blockIdx.x), pass = item % at.passes;
    bg = item / at.passes % at.groups;
    const int64_t n = at.tiles - 1 - item / at.passes / at.groups, b = at.sequence(bg);
    const int head = int(pass / at.parts) * at.per_pass;
    r0 = int(pass % at.parts) * at.span;
    bh = bg * at.heads + head;
    heads = int(at.heads - head < at.per_pass ? at.heads - head : at.per_pass);
    row0 = n * at.R + r0;
    first = at.number(n) * at.R + r0;
    const int64_t valid = at.valid(b, n) - r0, in = at.rows - row0;
    const int64_t part = at.R - r0 < at.span ? at.R - r0 : at.span;
    q_rows = int(in < 0 ? 0 : (in < part ? in : part));
    rows = int(valid < 0 ? 0 : (valid < q_rows ? valid : q_rows));
    entries = at.list(bg, n);
    const int64_t count = at.count(bg, n);
    keys = 0;
    if (rows == 0 || count == 0) return;
    // All blocks before the last are complete.
    const int64_t last = entry_block(entries[count - 1]) * at.block, left = first + rows - last;
    keys = (count - 1) * at.block + (left < at.block ? left : at.block);
  }
  // The row of a lane in the pass, and its row of all heads of q.
  __device__ int row(int lane, const BlockSizes& at) const { return lane % at.span; }
  __device__ int head(int lane, const BlockSizes& at) const { return lane / at.span; }
  __device__ int64_t of_q(int lane, const BlockSizes& at) const {
    return (bh + head(lane, at)) * at.rows + row0 + row(lane, at);
  }
  __device__ bool is_valid(int lane, const BlockSizes& at) const {
    return head(lane, at) < heads && row(lane, at) < rows;
  }
};

// The keys of a chunk of a list: their positions, -1 beyond the list, and from which row of the
// tile on they are seen.
template <int N>
struct ListKeys {
  int32_t key[N], seen_from[N];

  // Of the positions from j on; the caller synchronises.
  __device__ void load(const BlockTile& tile, const BlockSizes& at, int64_t j) {
    for (int i = threadIdx.x; i < N; i += blockDim.x) {
      const int64_t p = j + i;
      key[i] = -1;
      seen_from[i] = std::numeric_limits<int32_t>::max();
      if (p >= tile.keys) continue;
      const int64_t e = quotient(p, at.block);
      const int32_t entry = tile.entries[e];
      key[i] = int32_t(entry_block(entry) * at.block + p - e * at.block);
      const int32_t before = key[i] - int32_t(tile.first - tile.r0),
                    row = int32_t(entry_row(entry));
      seen_from[i] = before > row ? before : row;
    }
  }
};

// tile [rows, D] = the rows of d numbers at from(r), 0 where that is null, rounded by the layout.
template <class Layout, class F, class T = typename Layout::T>
__device__ inline void load_rows(T* tile, F&& from, int64_t d, bool packed) {
  constexpr int Rows = Layout::rows, D = Layout::size, Threads = Layout::threads;
  constexpr int n = kWide<T>, packs = D / n;
  if (packed) {
    for (int i = threadIdx.x; i < Rows * packs; i += Threads) {
      const int r = i / packs, c = i % packs * n;
      const T* row = from(r);
      Pack<T, n> x{};
      if (row && c < d) x = load_pack<n>(row + c);
#pragma unroll
      for (int e = 0; e < n; ++e) x.v[e] = Layout::rounded(x.v[e]);
      store_pack(tile + r * row_step<T>(D) + c, x);
    }
  } else {
    for (int i = threadIdx.x; i < Rows * D; i += Threads) {
      const int r = i / D, c = i % D;
      const T* row = from(r);
      tile[r * row_step<T>(D) + c] = row && c < d ? Layout::rounded(row[c]) : T(0);
    }
  }
}

// Whether the rows of a product that the warp has are among the first `lanes`: on tensor cores a
// warp has 16 neighbouring ones, on CUDA cores rows from all over the tile.
template <class Layout>
__device__ inline bool has_lanes(int lanes) {
  return Layout::weights > 0 || int(threadIdx.x) / kWarp * 16 < lanes;
}

}  // namespace brine::cuda
