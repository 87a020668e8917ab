// Attention of one new query per sequence over cached keys and values, and the cache updates.
#include "tensor/base/stored.h"
#include "tensor/cuda/attention/cached_spans.cuh"
#include "tensor/kernels/attention.h"

namespace brine::cuda {
namespace {

// Consecutive positions of a cache [B, G, S, d].
struct CachedRange {
  const int64_t *first, *last;  // of a sequence
  int64_t H, group, S;          // group = H / G

  __device__ Positions positions(int64_t head) const { return {first[head / H], last[head / H]}; }
  __device__ int64_t row(int64_t head, int64_t position) const {
    return head / group * S + position;
  }
};

// Position at[b] of cache [B, H, S, d] = row [B, H, d], one number per thread.
template <class T, class Stored>
__global__ void append_row_kernel(Stored* cache, const T* row, const int64_t* at, int64_t n,
                                  int64_t H, int64_t S, int64_t d) {
  const int64_t i = piece();
  if (i >= n) return;
  const int64_t head = i / d;
  cache[(head * S + at[head / H]) * d + i % d] = Stored(row[i]);
}

}  // namespace

void append_row(Tensor cache, Tensor row, Tensor at) {
  const OnDevice positions(at, cache.device());
  dispatch_stored(row.dtype(), cache.dtype(), [&]<class T, class Stored>() {
    launch_each("append_row", row.numel(), append_row_kernel<T, Stored>, cache.data<Stored>(),
                row.data<T>(), positions.data<int64_t>(), row.numel(), cache.dim(1), cache.dim(2),
                cache.dim(3));
  });
}

void cached_attention(Tensor y, Tensor q, Tensor k, Tensor v, Tensor first, Tensor last,
                      double scale) {
  const int64_t H = q.dim(1), S = k.dim(2);
  if (q.numel() == 0) return;
  const OnDevice begin(first, y.device()), end(last, y.device());
  const CachedRange keys{begin.data<int64_t>(), end.data<int64_t>(), H, H / k.dim(1), S};
  dispatch_stored(y.dtype(), k.dtype(), [&]<class T, class Stored>() {
    attend_spans<T, Stored>("cached_attention", y, q, k, v, keys, S, scale);
  });
}

}  // namespace brine::cuda
