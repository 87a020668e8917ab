// Linear attention of one new token: its key is added to the running sums, then its query reads
// them.
#include "tensor/cuda/core/common.cuh"
#include "tensor/kernels/estimator.h"

namespace brine::cuda {
namespace {

constexpr int kGroups = 8;  // warps that share the rows of a strip of columns

// sums [B G, m] += phi_k; share [B H] = 1 / (phi_q . (sums + eps)). A block for the `heads` heads
// of each group; a thread reads only the sums that it wrote.
template <class T>
__global__ void take_key_kernel(T* share, double* sums, const T* q, const T* k, int64_t heads,
                                int64_t m, double eps) {
  const int64_t group = blockIdx.x;
  sums += group * m;
  for (int64_t j = threadIdx.x; j < m; j += blockDim.x) sums[j] += double(k[group * m + j]);
  for (int64_t head = group * heads; head < (group + 1) * heads; ++head) {
    double den = 0;
    for (int64_t j = threadIdx.x; j < m; j += blockDim.x) {
      den += double(q[head * m + j]) * (sums[j] + eps);
    }
    den = block_sum(den);
    if (threadIdx.x == 0) share[head] = T(1 / den);
  }
}

template <class T>
struct Step {
  T *y, *state;  // [B H, e], [B G, m, e]
  const T *share, *q, *k;
  const T *identity, *v;            // [P, columns], [B G, e - columns]
  const int64_t* at;                // [B]
  int64_t G, heads, m, e, columns;  // heads of a group
};

// state += phi_k value^T, y = share phi_q . state for every head, for a strip of kWarp columns of
// one group. A thread reads only the numbers of the state that it wrote.
template <class T>
__global__ void move_state_kernel(const Step<T> in, int64_t strips) {
  __shared__ T parts[kGroups][kWarp];
  const int64_t group = int64_t(blockIdx.x) / strips, m = in.m, e = in.e;
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
  const int64_t c = int64_t(blockIdx.x) % strips * kWarp + lane;
  T* state = in.state + group * m * e + c;
  const T* k = in.k + group * m;
  T value = 0;
  if (c < e) {
    value = c < in.columns ? in.identity[in.at[group / in.G] * in.columns + c]
                           : in.v[group * (e - in.columns) + c - in.columns];
  }
  for (int64_t head = group * in.heads; head < (group + 1) * in.heads; ++head) {
    const bool first = head == group * in.heads;  // adds the key
    const T* q = in.q + head * m;
    T sum = 0;
#pragma unroll 8
    for (int64_t j = warp; c < e && j < m; j += kGroups) {
      T number = state[j * e];
      if (first) number += k[j] * value;
      if (first) state[j * e] = number;
      sum += q[j] * number;
    }
    __syncthreads();  // the parts of the previous head may still be read
    parts[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || c >= e) continue;
    for (int g = 1; g < kGroups; ++g) sum += parts[g][lane];
    in.y[head * e + c] = in.share[head] * sum;
  }
}

}  // namespace

void linear_attention_step(Tensor y, Tensor state, Tensor sums, Tensor phi_q, Tensor phi_k,
                           Tensor identity, Tensor v, Tensor at, double eps) {
  const int64_t G = state.dim(1), groups = state.dim(0) * G, m = state.dim(2), e = state.dim(3);
  const int64_t strips = (e + kWarp - 1) / kWarp;
  if (groups * strips == 0) return;
  const int64_t heads = phi_q.dim(1) / G;
  const OnDevice places(at, y.device());
  dispatch_float(y.dtype(), [&]<class T>() {
    Tensor share = Tensor::empty({groups * heads}, y.dtype(), y.device());
    launch("linear_attention_step", take_key_kernel<T>, dim3(blocks_for(groups, 1)), dim3(128), 0,
           share.data<T>(), sums.data<double>(), phi_q.data<T>(), phi_k.data<T>(), heads, m, eps);
    const Step<T> in{y.data<T>(),
                     state.data<T>(),
                     share.data<T>(),
                     phi_q.data<T>(),
                     phi_k.data<T>(),
                     identity.data<T>(),
                     v.data<T>(),
                     places.data<int64_t>(),
                     G,
                     heads,
                     m,
                     e,
                     e - v.dim(3)};
    launch("linear_attention_step", move_state_kernel<T>, dim3(blocks_for(groups * strips, 1)),
           dim3(kGroups * kWarp), 0, in, strips);
  });
}

}  // namespace brine::cuda
