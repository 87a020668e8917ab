// Attention of one new query per sequence over cached keys and values, and the cache updates.
//
// The positions of a cache are split into spans of a fixed size. A block attends to one span of one
// head; then the spans of a head are combined in order. The starts of the spans depend on nothing
// else, so the bits of a sequence depend neither on the other sequences nor on the capacity of the
// cache. Rows may be stored in 16 bits (S).
#include <limits>

#include "tensor/cuda/core/common.cuh"
#include "tensor/kernels/attention.h"
#include "tensor/stored.h"

namespace brine::cuda {
namespace {

constexpr int kSpan = 256;  // keys of a span, and threads of its block
constexpr int kWarps = kSpan / kWarp;
constexpr int kLanes = 8;  // lanes that share a key's product

template <class T, class Stored>
struct Cached {
  T *y, *parts;         // [B H, d]; [B H, spans, d + 2]: the sums, their maximum, their weight
  const T* q;           // [B H, d]
  const Stored *k, *v;  // [B G, S, d]
  const int64_t *first, *last;
  int64_t H, group, S, d, spans;  // group = H / G
  T scale;
};

// The spans that overlap [first, last); none when that is empty.
struct Spans {
  int64_t begin, end;
};
__device__ inline Spans spans_of(int64_t first, int64_t last) {
  if (last <= first) return {0, 0};
  return {first / kSpan, (last + kSpan - 1) / kSpan};
}

// scores [n] = scale q . k of n keys, for a block of kSpan threads.
template <class T, class Stored>
__device__ inline void span_scores(T* scores, const T* q, const Stored* k, int n, int64_t d,
                                   T scale) {
  const int lane = int(threadIdx.x) % kLanes;
  // Whole warps iterate together: the sum over lanes needs all of them.
  for (int i = int(threadIdx.x) / kLanes; i - i % (kWarp / kLanes) < n; i += kSpan / kLanes) {
    T dot = 0;
    if (i < n) {
#pragma unroll 8
      for (int64_t c = lane; c < d; c += kLanes) dot += q[c] * T(k[i * d + c]);
    }
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
      dot += __shfl_xor_sync(kAllLanes, dot, offset);
    }
    if (lane == 0 && i < n) scores[i] = scale * dot;
  }
}

// One span of one head. Dynamic shared memory: kSpan weights, and a sum of d for every warp.
template <class T, class Stored>
__global__ void __launch_bounds__(kSpan) span_kernel(const Cached<T, Stored> in) {
  const int64_t d = in.d, head = int64_t(blockIdx.x) / in.spans;
  const int64_t span = int64_t(blockIdx.x) % in.spans;
  const int64_t first = in.first[head / in.H], last = in.last[head / in.H];
  const Spans own = spans_of(first, last);
  if (span < own.begin || span >= own.end) return;
  const int64_t begin = first > span * kSpan ? first : span * kSpan;
  const int n = int((last < (span + 1) * kSpan ? last : (span + 1) * kSpan) - begin);
  const int64_t place = (head / in.group * in.S + begin) * d;
  T *p = dynamic_shared<T>(), *sums = p + kSpan;
  span_scores(p, in.q + head * d, in.k + place, n, d, in.scale);
  __syncthreads();
  constexpr T kLowest = std::numeric_limits<T>::lowest();
  const bool mine = int(threadIdx.x) < n;
  const T score = mine ? p[threadIdx.x] : kLowest;
  const T most = block_reduce(score, kLowest, Max{});
  const T weight = mine ? math::exp_nonpositive(score - most) : T(0);
  p[threadIdx.x] = weight;
  const T total = block_sum(weight);
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
  for (int64_t c = lane; c < d; c += kWarp) {
    T sum = 0;
#pragma unroll 8
    for (int i = warp; i < n; i += kWarps) sum += p[i] * T(in.v[place + i * d + c]);
    sums[warp * d + c] = sum;
  }
  __syncthreads();
  T* part = in.parts + (head * in.spans + span) * (d + 2);
  for (int64_t c = threadIdx.x; c < d; c += kSpan) {
    T sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += sums[w * d + c];
    part[c] = sum;
  }
  if (threadIdx.x == 0) {
    part[d] = most;
    part[d + 1] = total;
  }
}

// y [B H, d] from the spans of each head, in order. A block for each head.
template <class T, class Stored>
__global__ void combine_kernel(const Cached<T, Stored> in) {
  const int64_t d = in.d, step = d + 2, head = blockIdx.x;
  const Spans own = spans_of(in.first[head / in.H], in.last[head / in.H]);
  const T* part = in.parts + head * in.spans * step;
  constexpr T kLowest = std::numeric_limits<T>::lowest();
  T most = kLowest;
  for (int64_t i = own.begin + threadIdx.x; i < own.end; i += blockDim.x) {
    most = Max{}(most, part[i * step + d]);
  }
  most = block_reduce(most, kLowest, Max{});
  for (int64_t c = threadIdx.x; c < d; c += blockDim.x) {
    T sum = 0, total = 0;
#pragma unroll 4
    for (int64_t i = own.begin; i < own.end; ++i) {
      const T weight = math::exp_nonpositive(part[i * step + d] - most);
      sum += weight * part[i * step + c];
      total += weight * part[i * step + d + 1];
    }
    in.y[head * d + c] = own.begin < own.end ? sum / total : T(0);
  }
}

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
  const OnDevice places(at, cache.device());
  dispatch_stored(row.dtype(), cache.dtype(), [&]<class T, class Stored>() {
    launch_each("append_row", row.numel(), append_row_kernel<T, Stored>, cache.data<Stored>(),
                row.data<T>(), places.data<int64_t>(), row.numel(), cache.dim(1), cache.dim(2),
                cache.dim(3));
  });
}

void cached_attention(Tensor y, Tensor q, Tensor k, Tensor v, Tensor first, Tensor last,
                      double scale) {
  const int64_t H = q.dim(1), S = k.dim(2), d = k.dim(3), heads = q.dim(0) * H;
  if (heads * d == 0) return;
  const int64_t spans = std::max<int64_t>(1, (S + kSpan - 1) / kSpan);
  const OnDevice begin(first, y.device()), end(last, y.device());
  dispatch_stored(y.dtype(), k.dtype(), [&]<class T, class Stored>() {
    Tensor parts = Tensor::empty({heads, spans, d + 2}, y.dtype(), y.device());
    const Cached<T, Stored> in{y.data<T>(),
                               parts.data<T>(),
                               q.data<T>(),
                               k.data<Stored>(),
                               v.data<Stored>(),
                               begin.data<int64_t>(),
                               end.data<int64_t>(),
                               H,
                               H / k.dim(1),
                               S,
                               d,
                               spans,
                               T(scale)};
    launch("cached_attention", span_kernel<T, Stored>, dim3(blocks_for(heads * spans, 1)),
           dim3(kSpan), size_t(kSpan + kWarps * d) * sizeof(T), in);
    launch("cached_attention", combine_kernel<T, Stored>, dim3(blocks_for(heads, 1)), dim3(128), 0,
           in);
  });
}

}  // namespace brine::cuda
