// The entries of a mask by key: for every (b, g, key) its rows in ascending order, of a flat CSR
// mask with the weights of the entries. g is a group of heads, whose rows are numbered one head
// after the other; of a mask of blocks keys are blocks and rows are tiles. Cost and memory grow
// with the entries and keys.
//
// The rows of a group are split into a few chunks. Integer atomics count the entries of every key
// in every chunk; prefix sums of the counts give the start of a chunk's entries in the list of a
// key. Then a block iterates over its chunk, 32 rows at a time: each row sets its bit in a word of
// the key, and the number of lower bits is the number of entries before it. The order therefore
// does not depend on the order of the threads or on the number of chunks.
#pragma once

#include "tensor/cuda/core/prefix_sum.cuh"
#include "tensor/mask/csr.h"

namespace brine::cuda {

constexpr int64_t kChunkBlocks = 256;  // approximate number of blocks that iterate over chunks
constexpr int kChunkStep = 32;         // rows of a step: a bit and a warp for each

// Rows gives the entries of row r of all groups: rows(r), as RowEntries.
template <class Rows>
struct Chunks {
  Rows rows;
  int64_t keys;            // of a group
  int64_t of_group;        // rows of a group: those of all its heads
  int64_t chunks, length;  // of a group; rows of a chunk

  // The offset of the counts of row r of the mask, by its group and chunk.
  __device__ int64_t keys_of(int64_t r) const {
    return (r / of_group * chunks + r % of_group / length) * keys;
  }
};

// counts [B G, chunks, S], initially zero; a warp for every row.
template <class Rows>
__global__ void count_keys_kernel(int32_t* counts, Chunks<Rows> a, int64_t pieces) {
  const int64_t r = piece() / kWarp;
  if (r >= pieces) return;
  const auto at = a.rows(r);
  int32_t* row_counts = counts + a.keys_of(r);
  for (int64_t e = threadIdx.x % kWarp; e < at.count; e += kWarp)
    atomicAdd(row_counts + at.key(e), 1);
}

// counts become the sums over the chunks before, sizes [B G, S] those over all.
static __global__ void sum_chunks_kernel(int64_t* sizes, int32_t* counts, int64_t chunks, int64_t S,
                                         int64_t keys) {
  const int64_t i = piece();
  if (i >= keys) return;
  int32_t* key_counts = counts + i / S * chunks * S + i % S;
  int32_t sum = 0;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int32_t n = key_counts[chunk * S];
    key_counts[chunk * S] = sum;
    sum += n;
  }
  sizes[i] = sum;
}

struct Sizes {
  const int64_t* sizes;
  __device__ int64_t operator()(int64_t i) const { return sizes[i]; }
};
struct Starts {
  int64_t *starts, keys;
  __device__ void operator()(int64_t i, int64_t below, int64_t upto) const {
    starts[i] = below;
    if (i == keys - 1) starts[keys] = upto;
  }
};

// The contents of the lists; a pair of weights may be null.
template <class T>
struct Lists {
  int32_t* rows;
  T *first, *second;
  const T *of_first, *of_second;

  __device__ void put(int64_t index, int64_t row, int64_t entry) const {
    rows[index] = int32_t(row);
    if (first) first[index] = of_first[entry];
    if (second) second[index] = of_second[entry];
  }
};

// A block for every chunk, a warp for each row of a step. `before` has the number of entries of a
// key in the rows so far, `bits` is zero between steps.
template <class Contents, class Rows>
__global__ void __launch_bounds__(kChunkStep* kWarp)
    fill_lists_kernel(Contents lists, const int64_t* starts, int32_t* before, uint32_t* bits,
                      Chunks<Rows> a) {
  const int64_t bg = blockIdx.x / a.chunks, begin = blockIdx.x % a.chunks * a.length;
  const int64_t end = begin + a.length < a.of_group ? begin + a.length : a.of_group;
  const int warp = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp;
  starts += bg * a.keys;
  before += blockIdx.x * a.keys;
  bits += blockIdx.x * a.keys;
  for (int64_t first = begin; first < end; first += kChunkStep) {
    const int64_t t = first + warp;
    decltype(a.rows(t)) at{};
    if (t < end) at = a.rows(bg * a.of_group + t);
    for (int64_t e = lane; e < at.count; e += kWarp) atomicOr(bits + at.key(e), 1u << warp);
    __syncthreads();
    for (int64_t e = lane; e < at.count; e += kWarp) {
      const int64_t key = at.key(e);
      const int earlier = __popc(bits[key] & ((1u << warp) - 1));
      lists.put(starts[key] + before[key] + earlier, t, at.first + e);
    }
    __syncthreads();
    for (int64_t e = lane; e < at.count; e += kWarp) {
      const int64_t key = at.key(e);
      const uint32_t all = bits[key];
      // The last row of the key ends the step; others that read the 0 do nothing.
      if (all >> warp != 1) continue;
      before[key] += __popc(all);
      bits[key] = 0;
    }
    __syncthreads();
  }
}

// starts i64 [groups keys + 1] and the contents of the lists (as Lists), from `of_group` rows of
// each group.
template <class Contents, class Rows>
void transpose_rows(const char* name, const Contents& lists, const Tensor& starts, const Rows& rows,
                    int64_t groups, int64_t of_group, int64_t keys_of_group) {
  const Device device = starts.device();
  const int64_t keys = groups * keys_of_group;
  const int64_t steps = std::max<int64_t>(1, (of_group + kChunkStep - 1) / kChunkStep);
  const int64_t wanted = std::clamp<int64_t>(kChunkBlocks / groups, 1, steps);
  const int64_t length = (steps + wanted - 1) / wanted * kChunkStep;
  const int64_t chunks = (steps * kChunkStep + length - 1) / length, n = chunks * keys;
  Tensor words = Tensor::empty({2, n}, Dtype::i32, device);
  auto* before = words.data<int32_t>();
  check_cuda(cudaMemsetAsync(before, 0, size_t(2 * n) * sizeof(int32_t), stream()), name);
  const Chunks<Rows> a{rows, keys_of_group, of_group, chunks, length};
  const int64_t pieces = groups * of_group;
  auto* sizes = starts.data<int64_t>();
  launch_each(name, pieces * kWarp, count_keys_kernel<Rows>, before, a, pieces);
  launch_each(name, keys, sum_chunks_kernel, sizes, before, chunks, keys_of_group, keys);
  prefix_sum(name, keys, Sizes{sizes}, Starts{sizes, keys}, device);
  launch(name, fill_lists_kernel<Contents, Rows>, dim3(blocks_for(groups * chunks, 1)),
         dim3(kChunkStep * kWarp), 0, lists, sizes, before, reinterpret_cast<uint32_t*>(before + n),
         a);
}

struct TransposedEntries {
  Tensor starts;         // i64 [B G S + 1]
  Tensor rows;           // i32 [entries]: ascending within a key
  Tensor first, second;  // the weights given, in this order
};

// `group` heads have common keys. `first` and `second` are [entries] of type T or undefined; csr
// has a key.
template <class T>
TransposedEntries transpose_entries(const FlatCsr& csr, int64_t group, const Tensor& first,
                                    const Tensor& second) {
  const Device device = csr.columns.device();
  const int64_t groups = csr.batch * (csr.heads / group);
  TransposedEntries out{Tensor::empty({groups * csr.keys + 1}, Dtype::i64, device),
                        Tensor::like(csr.columns), first.defined() ? Tensor::like(first) : Tensor(),
                        second.defined() ? Tensor::like(second) : Tensor()};
  const Lists<T> lists{out.rows.data<int32_t>(), data_or_null<T>(out.first),
                       data_or_null<T>(out.second), data_or_null<T>(first),
                       data_or_null<T>(second)};
  transpose_rows("sparse_attention_backward", lists, out.starts, MaskRows(csr), groups,
                 group * csr.length, csr.keys);
  return out;
}

}  // namespace brine::cuda
