// Attention of one query against rows of a cache: shared by kernels over consecutive rows and over
// lists of blocks.
//
// The positions of the rows of a head are split into spans of a fixed size. A block attends to one
// span of one head; then the spans of a head are combined in order. The starts of the spans depend
// on nothing else, so the bits of a sequence depend neither on the other sequences nor on the
// capacity of the cache. Rows may be stored in 16 bits (S).
#pragma once

#include <limits>

#include "tensor/cuda/core/common.cuh"

namespace brine::cuda {

constexpr int kSpan = 256;  // keys of a span, and threads of its block
constexpr int kSpanWarps = kSpan / kWarp;
constexpr int kSpanLanes = 8;  // lanes that share a key's product

struct Positions {
  int64_t first, last;
};

// Keys gives the positions of a head, positions(head), and the row of k and v at one of them,
// row(head, position).
template <class T, class Stored, class Keys>
struct Cached {
  T *y, *parts;         // [B H, d]; [B H, spans, d + 2]: the sums, their maximum, their weight
  const T* q;           // [B H, d]
  const Stored *k, *v;  // rows of d numbers
  Keys keys;
  int64_t d, spans;
  T scale;
};

// The spans that overlap [first, last); none when that is empty.
__device__ inline Positions spans_of(const Positions& at) {
  if (at.last <= at.first) return {0, 0};
  return {at.first / kSpan, (at.last + kSpan - 1) / kSpan};
}

// scores [n] = scale q . k of n keys from position `begin` on, for a block of kSpan threads.
template <class T, class Stored, class Keys>
__device__ inline void span_scores(T* scores, const Cached<T, Stored, Keys>& in, int64_t head,
                                   int64_t begin, int n) {
  const int lane = int(threadIdx.x) % kSpanLanes;
  const T* q = in.q + head * in.d;
  // Whole warps iterate together: the sum over lanes needs all of them.
  for (int i = int(threadIdx.x) / kSpanLanes; i - i % (kWarp / kSpanLanes) < n;
       i += kSpan / kSpanLanes) {
    T dot = 0;
    if (i < n) {
      const Stored* k = in.k + in.keys.row(head, begin + i) * in.d;
#pragma unroll 8
      for (int64_t c = lane; c < in.d; c += kSpanLanes) dot += q[c] * T(k[c]);
    }
#pragma unroll
    for (int offset = kSpanLanes / 2; offset > 0; offset /= 2) {
      dot += __shfl_xor_sync(kAllLanes, dot, offset);
    }
    if (lane == 0 && i < n) scores[i] = in.scale * dot;
  }
}

// One span of one head. Dynamic shared memory: kSpan weights, and a sum of d for every warp.
template <class T, class Stored, class Keys>
__global__ void __launch_bounds__(kSpan) span_kernel(const Cached<T, Stored, Keys> in) {
  const int64_t d = in.d, head = int64_t(blockIdx.x) / in.spans;
  const int64_t span = int64_t(blockIdx.x) % in.spans;
  const Positions at = in.keys.positions(head), spans = spans_of(at);
  if (span < spans.first || span >= spans.last) return;
  const int64_t begin = at.first > span * kSpan ? at.first : span * kSpan;
  const int n = int((at.last < (span + 1) * kSpan ? at.last : (span + 1) * kSpan) - begin);
  T *p = dynamic_shared<T>(), *sums = p + kSpan;
  span_scores(p, in, head, begin, n);
  __syncthreads();
  constexpr T kLowest = std::numeric_limits<T>::lowest();
  const bool valid = int(threadIdx.x) < n;
  const T score = valid ? p[threadIdx.x] : kLowest;
  const T max_score = block_reduce(score, kLowest, Max{});
  const T weight = valid ? math::exp_nonpositive(score - max_score) : T(0);
  p[threadIdx.x] = weight;
  const T total = block_sum(weight);
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
  for (int64_t c = lane; c < d; c += kWarp) {
    T sum = 0;
#pragma unroll 8
    for (int i = warp; i < n; i += kSpanWarps) {
      sum += p[i] * T(in.v[in.keys.row(head, begin + i) * d + c]);
    }
    sums[warp * d + c] = sum;
  }
  __syncthreads();
  T* part = in.parts + (head * in.spans + span) * (d + 2);
  for (int64_t c = threadIdx.x; c < d; c += kSpan) {
    T sum = 0;
    for (int w = 0; w < kSpanWarps; ++w) sum += sums[w * d + c];
    part[c] = sum;
  }
  if (threadIdx.x == 0) {
    part[d] = max_score;
    part[d + 1] = total;
  }
}

// y [B H, d] from the spans of each head, in order. A block for each head.
template <class T, class Stored, class Keys>
__global__ void combine_kernel(const Cached<T, Stored, Keys> in) {
  const int64_t d = in.d, step = d + 2, head = blockIdx.x;
  const Positions spans = spans_of(in.keys.positions(head));
  const T* part = in.parts + head * in.spans * step;
  constexpr T kLowest = std::numeric_limits<T>::lowest();
  T max_score = kLowest;
  for (int64_t i = spans.first + threadIdx.x; i < spans.last; i += blockDim.x) {
    max_score = Max{}(max_score, part[i * step + d]);
  }
  max_score = block_reduce(max_score, kLowest, Max{});
  for (int64_t c = threadIdx.x; c < d; c += blockDim.x) {
    T sum = 0, total = 0;
#pragma unroll 4
    for (int64_t i = spans.first; i < spans.last; ++i) {
      const T weight = math::exp_nonpositive(part[i * step + d] - max_score);
      sum += weight * part[i * step + c];
      total += weight * part[i * step + d + 1];
    }
    in.y[head * d + c] = spans.first < spans.last ? sum / total : T(0);
  }
}

// y [B, H, d] = softmax(scale q . k) v; q [B, H, 1, d] and caches [B, G, S, d] of rows at most
// `positions` positions.
template <class T, class Stored, class Keys>
void attend_spans(const char* name, const Tensor& y, const Tensor& q, const Tensor& k,
                  const Tensor& v, const Keys& keys, int64_t positions, double scale) {
  const int64_t heads = q.dim(0) * q.dim(1), d = k.dim(3);
  const int64_t spans = std::max<int64_t>(1, (positions + kSpan - 1) / kSpan);
  const Tensor parts = Tensor::empty({heads, spans, d + 2}, y.dtype(), y.device());
  const Cached<T, Stored, Keys> in{
      y.data<T>(), parts.data<T>(), q.data<T>(), k.data<Stored>(), v.data<Stored>(), keys,
      d,           spans,           T(scale)};
  launch(name, span_kernel<T, Stored, Keys>, dim3(blocks_for(heads * spans, 1)), dim3(kSpan),
         size_t(kSpan + kSpanWarps * d) * sizeof(T), in);
  launch(name, combine_kernel<T, Stored, Keys>, dim3(blocks_for(heads, 1)), dim3(128), 0, in);
}

}  // namespace brine::cuda
