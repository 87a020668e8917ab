// Linear attention of one new token: its key is added to the running sums, then its query reads
// them.
#include "tensor/cuda/core/common.cuh"
#include "tensor/kernels/estimator.h"

namespace brine::cuda {
namespace {

constexpr int kGroups = 8;  // warps that share the rows of a strip of columns

// sums [B H, m] += phi_k; share [B H] = 1 / (phi_q . (sums + eps)). A block for each head.
template <class T>
__global__ void take_key_kernel(T* share, double* sums, const T* q, const T* k, int64_t m,
                                double eps) {
  const int64_t head = blockIdx.x;
  double den = 0;
  for (int64_t j = threadIdx.x; j < m; j += blockDim.x) {
    const double sum = sums[head * m + j] + double(k[head * m + j]);
    sums[head * m + j] = sum;
    den += double(q[head * m + j]) * (sum + eps);
  }
  den = block_sum(den);
  if (threadIdx.x == 0) share[head] = T(1 / den);
}

template <class T>
struct Step {
  T *y, *state;  // [B H, e], [B H, m, e]
  const T *share, *q, *k;
  const T *identity, *v;  // [P, columns], [B H, e - columns]
  const int64_t* at;      // [B]
  int64_t H, m, e, columns;
};

// state += phi_k value^T, y = share phi_q . state, for a strip of kWarp columns of one head.
template <class T>
__global__ void move_state_kernel(const Step<T> in, int64_t strips) {
  __shared__ T parts[kGroups][kWarp];
  const int64_t head = int64_t(blockIdx.x) / strips, m = in.m, e = in.e;
  const int lane = int(threadIdx.x) % kWarp, group = int(threadIdx.x) / kWarp;
  const int64_t c = int64_t(blockIdx.x) % strips * kWarp + lane;
  T sum = 0;
  if (c < e) {
    const T value = c < in.columns ? in.identity[in.at[head / in.H] * in.columns + c]
                                   : in.v[head * (e - in.columns) + c - in.columns];
    const T *q = in.q + head * m, *k = in.k + head * m;
    T* state = in.state + head * m * e + c;
#pragma unroll 8
    for (int64_t j = group; j < m; j += kGroups) {
      const T number = state[j * e] + k[j] * value;
      state[j * e] = number;
      sum += q[j] * number;
    }
  }
  parts[group][lane] = sum;
  __syncthreads();
  if (group != 0 || c >= e) return;
  for (int g = 1; g < kGroups; ++g) sum += parts[g][lane];
  in.y[head * e + c] = in.share[head] * sum;
}

}  // namespace

void linear_attention_step(Tensor y, Tensor state, Tensor sums, Tensor phi_q, Tensor phi_k,
                           Tensor identity, Tensor v, Tensor at, double eps) {
  const int64_t heads = state.dim(0) * state.dim(1), m = state.dim(2), e = state.dim(3);
  const int64_t strips = (e + kWarp - 1) / kWarp;
  if (heads * strips == 0) return;
  const OnDevice places(at, y.device());
  dispatch_float(y.dtype(), [&]<class T>() {
    Tensor share = Tensor::empty({heads}, y.dtype(), y.device());
    launch("linear_attention_step", take_key_kernel<T>, dim3(blocks_for(heads, 1)), dim3(128), 0,
           share.data<T>(), sums.data<double>(), phi_q.data<T>(), phi_k.data<T>(), m, eps);
    const Step<T> in{y.data<T>(),
                     state.data<T>(),
                     share.data<T>(),
                     phi_q.data<T>(),
                     phi_k.data<T>(),
                     identity.data<T>(),
                     v.data<T>(),
                     places.data<int64_t>(),
                     state.dim(1),
                     m,
                     e,
                     e - v.dim(3)};
    launch("linear_attention_step", move_state_kernel<T>, dim3(blocks_for(heads * strips, 1)),
           dim3(kGroups * kWarp), 0, in, strips);
  });
}

}  // namespace brine::cuda
