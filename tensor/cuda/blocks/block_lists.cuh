// The tiles of rows that keep each block of keys, for the gradients of keys and values: the lists
// of transposed_entries.cuh, where the lanes of all tiles of a block follow each other.
//
// The first blocks are kept by every tile, so lists are cut into slices, each of a thread block.
// How many there are at most depends on the sizes alone, how many a block uses on its list; their
// sums are added in order.
#pragma once

#include "tensor/cuda/attention/transposed_entries.cuh"
#include "tensor/cuda/blocks/block_tile.cuh"
#include "tensor/cuda/core/scratch.h"

namespace brine::cuda {

// The tiles of a mask as the rows of transpose_rows(), their blocks as its keys.
struct TileEntries {
  const int32_t* entries;
  int64_t first, count;
  __device__ int64_t key(int64_t e) const { return entry_block(entries[e]); }
};
struct TileRows {
  const int32_t *counts, *entries;
  int64_t capacity;
  __device__ TileEntries operator()(int64_t r) const {
    return {entries + r * capacity, r * capacity, counts[r]};
  }
};

// The tiles of a block: block_entry(tile, first row).
struct TileLists {
  int32_t* tiles;
  const int32_t* entries;
  __device__ void put(int64_t index, int64_t tile, int64_t entry) const {
    tiles[index] = block_entry(tile, entry_row(entries[entry]));
  }
};

// The lists by block, cut into slices, and where their sums go; null: not needed.
template <class T>
struct KeySums {
  const int64_t* starts;
  const int32_t* tiles;
  T *dk, *dv;              // [groups, T, d]
  T *dk_parts, *dv_parts;  // of a batch [its groups, slices, T, d], if there are several slices
  int64_t blocks, slices, bg0;  // blocks of a group; the first group of the batch
  int64_t least;                // lanes of a slice, if there are several; 0: all slices are used
  int span, parts;              // keys of a thread block, thread blocks of a block

  // The slices that a list of so many tiles is cut into.
  __device__ int64_t used(int64_t count, const BlockSizes& at) const {
    if (slices == 1 || least == 0) return slices;
    const int64_t full = quotient(count * at.heads * at.R, least);
    return full < 1 ? 1 : (full < slices ? full : slices);
  }
};

// The thread block of a part of a block and a slice of its list. Lane L is row L % R of head L / R
// % heads of tile L / R / heads.
template <class T>
struct KeyTile {
  int64_t bg, of_batch, b, first;  // first: key
  int keys;                        // of the part that exist
  const int32_t* tiles;
  int64_t lanes, slice, used;  // slices from `used` on have no sums

  __device__ KeyTile(const KeySums<T>& to, const BlockSizes& at) {
    int64_t item = blockIdx.x;
    const int part = int(item % to.parts);
    item /= to.parts;
    slice = item % to.slices;
    item /= to.slices;
    const int64_t block = item % to.blocks;
    of_batch = item / to.blocks;
    bg = to.bg0 + of_batch;
    b = at.sequence(bg);
    first = block * at.block + part * to.span;
    const int64_t block_end = (block + 1) * at.block, end = block_end < at.T ? block_end : at.T;
    keys = int(end - first < 0 ? 0 : (end - first < to.span ? end - first : to.span));
    const int64_t* start = to.starts + bg * to.blocks + block;
    const int64_t count = start[1] - start[0];
    used = to.used(count, at);
    const int64_t from = start[0] + count * slice / used;
    tiles = to.tiles + from;
    lanes = (start[0] + count * (slice + 1) / used - from) * at.heads * at.R;
  }
  // Where the sums of its first key go: to `all` if there are no others to be added.
  __device__ T* first_sums(const KeySums<T>& to, const BlockSizes& at, T* all, T* parts) const {
    if (!all) return nullptr;
    return used == 1 ? all + (bg * at.T + first) * at.d
                     : parts + ((of_batch * to.slices + slice) * at.T + first) * at.d;
  }
};

// all = the sums of the used slices, in order, for the groups of a batch; n numbers in all.
template <class T>
__global__ void add_slices_kernel(T* all, const T* parts, const KeySums<T> to, const BlockSizes at,
                                  int64_t n) {
  const int64_t i = piece();
  if (i >= n) return;
  const int64_t of_group = at.T * at.d, group = quotient(i, of_group),
                offset = i - group * of_group;
  const int64_t bg = to.bg0 + group;
  const int64_t* start = to.starts + bg * to.blocks + quotient(quotient(offset, at.d), at.block);
  const int64_t used = to.used(start[1] - start[0], at);
  if (used == 1) return;
  const T* first_slice = parts + group * to.slices * of_group + offset;
  T sum = first_slice[0];
  for (int64_t s = 1; s < used; ++s) sum += first_slice[s * of_group];
  all[bg * of_group + offset] = sum;
}

// The lists of a mask; keeps their memory.
class BlockLists {
 public:
  BlockLists(const char* name, const BlockMask& mask, int64_t groups, int64_t keys)
      : blocks_((keys + mask.block - 1) / mask.block),
        tile_count_(mask.tile_count()),
        starts_(Tensor::empty({groups * blocks_ + 1}, Dtype::i64, mask.entries.device())),
        tiles_(Tensor::like(mask.entries)) {
    const auto *counts = mask.counts.data<int32_t>(), *entries = mask.entries.data<int32_t>();
    transpose_rows(name, TileLists{tiles_.data<int32_t>(), entries}, starts_,
                   TileRows{counts, entries, mask.capacity()}, groups, tile_count_, blocks_);
  }

  // Of parts of one key. Slices: enough thread blocks of similar length where all tiles keep a
  // block.
  template <class T>
  KeySums<T> sums(const Tensor& dk, const Tensor& dv, int64_t least = 0) const {
    return {.starts = starts_.data<int64_t>(),
            .tiles = tiles_.data<int32_t>(),
            .dk = data_or_null<T>(dk),
            .dv = data_or_null<T>(dv),
            .dk_parts = nullptr,
            .dv_parts = nullptr,
            .blocks = blocks_,
            .slices = std::clamp<int64_t>(tile_count_ / 64, 1, 8),
            .bg0 = 0,
            .least = least,
            .span = 1,
            .parts = 1};
  }

 private:
  int64_t blocks_, tile_count_;
  Tensor starts_, tiles_;
};

// Calls run(sums of a batch, its thread blocks) for as many groups at a time as there is scratch
// memory for their slices, which are added up.
template <class T, class F>
void in_batches(const char* name, KeySums<T> to, const BlockSizes& at, Device device, F&& run) {
  to.parts = int((at.block + to.span - 1) / to.span);
  const int64_t n = at.T * at.d, sums = to.slices * n;
  const int64_t batch =
      to.slices == 1 ? at.groups : heads_per_batch(at.groups, 2 * sums * int64_t(sizeof(T)));
  auto room = [&](const T* wanted) {
    if (!wanted || to.slices == 1) return Tensor();
    return Tensor::empty({batch, sums}, sizeof(T) == 4 ? Dtype::f32 : Dtype::f64, device);
  };
  const Tensor of_k = room(to.dk), of_v = room(to.dv);
  to.dk_parts = data_or_null<T>(of_k);
  to.dv_parts = data_or_null<T>(of_v);
  for (to.bg0 = 0; to.bg0 < at.groups; to.bg0 += batch) {
    const int64_t groups = std::min(batch, at.groups - to.bg0);
    run(to, dim3(blocks_for(groups * to.blocks * to.slices * to.parts, 1)));
    auto add = [&](T* all, T* parts) {
      if (parts)
        launch_each(name, groups * n, add_slices_kernel<T>, all, parts, to, at, groups * n);
    };
    add(to.dk, to.dk_parts);
    add(to.dv, to.dv_parts);
  }
}

}  // namespace brine::cuda
