// Attention of one new query per sequence over the cached keys of its list of blocks.
#include "tensor/base/stored.h"
#include "tensor/cuda/attention/cached_spans.cuh"
#include "tensor/cuda/core/packs.cuh"
#include "tensor/kernels/blocks.h"
#include "tensor/mask/blocks.h"

namespace brine::cuda {
namespace {

// Positions in the list of a group; every block before the last is complete.
struct CachedBlocks {
  const int32_t *counts, *entries;
  const int64_t* width;  // of a sequence
  int64_t H, group, S, capacity, block;

  __device__ Positions positions(int64_t head) const {
    const int64_t bg = head / group, count = counts[bg];
    if (count == 0) return {0, 0};
    const int64_t last = entry_block(entries[bg * capacity + count - 1]) * block;
    const int64_t left = width[head / H] - last;
    return {0, (count - 1) * block + (left < block ? left : block)};
  }
  __device__ int64_t row(int64_t head, int64_t position) const {
    const int64_t bg = head / group, e = quotient(position, block);
    return bg * S + entry_block(entries[bg * capacity + e]) * block + position - e * block;
  }
};

}  // namespace

void block_attention_step(Tensor y, Tensor q, Tensor k, Tensor v, BlockMask mask, Tensor width,
                          double scale) {
  if (q.numel() == 0) return;
  const int64_t H = q.dim(1), S = k.dim(2), max_keys = mask.capacity() * mask.block;
  const OnDevice widths(width, y.device());
  const CachedBlocks keys{.counts = mask.counts.data<int32_t>(),
                          .entries = mask.entries.data<int32_t>(),
                          .width = widths.data<int64_t>(),
                          .H = H,
                          .group = H / k.dim(1),
                          .S = S,
                          .capacity = mask.capacity(),
                          .block = mask.block};
  dispatch_stored(y.dtype(), k.dtype(), [&]<class T, class Stored>() {
    attend_spans<T, Stored>("block_attention_step", y, q, k, v, keys, std::min(S, max_keys), scale);
  });
}

}  // namespace brine::cuda
