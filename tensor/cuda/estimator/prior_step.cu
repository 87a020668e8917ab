// The prior of one new token. Only the sums of key features at the borders of columns are kept. Per
// token a border moves by at most one key, whose features are added: the same additions in the same
// order as in the full pass.
#include "tensor/cuda/core/common.cuh"
#include "tensor/kernels/estimator.h"

namespace brine::cuda {
namespace {

template <class T>
struct Step {
  T* y;             // [B H, K]
  double* borders;  // [B H, K + 1, padded]
  const int64_t *at, *width;
  const T *scores, *gain, *q, *k;  // [B H, K], [H], [B H, m], [B H, S, m]
  int64_t H, m, K, S, padded;
};

// Computes the borders of one head from scratch, a thread for each feature.
template <class T>
__device__ void place_borders(double* borders, const T* keys, int64_t w, const Step<T>& in) {
  for (int64_t i = threadIdx.x; i < in.padded; i += blockDim.x) {
    double sum = 0;
    int64_t key = 0;
    for (int64_t c = 0; c <= in.K; ++c) {
      const int64_t end = i < in.m ? math::column_begin(c, w, in.K) : 0;
#pragma unroll 8
      for (; key < end; ++key) sum += double(keys[key * in.m + i]);
      borders[c * in.padded + i] = sum;
    }
  }
}

// Moves border c of one head to its key for a width of w keys, and computes the query's product
// with it; by a warp.
template <class T>
__device__ double move_border(double* sums, const T* q, const T* keys, int64_t from, int64_t to,
                              int64_t m) {
  double product = 0;
  for (int64_t i = int64_t(threadIdx.x) % kWarp; i < m; i += kWarp) {
    double sum = sums[i];
    for (int64_t key = from; key < to; ++key) sum += double(keys[key * m + i]);
    if (from < to) sums[i] = sum;
    product += double(q[i]) * sum;
  }
  return warp_sum(product);
}

// A block for each head. Dynamic shared memory: K + 1 products.
template <class T>
__global__ void prior_step_kernel(const Step<T> in) {
  double* below = dynamic_shared<double>();
  const int64_t head = blockIdx.x, K = in.K, m = in.m, b = head / in.H;
  const int64_t before = in.at[b], w = in.width[b];
  double* borders = in.borders + head * (K + 1) * in.padded;
  const T* keys = in.k + head * in.S * m;
  const bool fresh = before == 0;
  if (fresh) place_borders(borders, keys, w, in);
  __syncthreads();
  const int64_t lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int64_t c = warp; c <= K; c += blockDim.x / kWarp) {
    const int64_t to = math::column_begin(c, w, K);
    const int64_t from = fresh ? to : math::column_begin(c, before, K);
    const double product = move_border(borders + c * in.padded, in.q + head * m, keys, from, to, m);
    if (lane == 0) below[c] = c ? product : 0.0;  // before border 0 there are no keys
  }
  __syncthreads();
  const double mean = double(w) / below[K];
  const T gain = in.gain[head % in.H];
  for (int64_t c = threadIdx.x; c < K; c += blockDim.x) {
    const int64_t n = math::column_begin(c + 1, w, K) - math::column_begin(c, w, K);
    const T share = n ? T((below[c + 1] - below[c]) * (mean / double(n))) : T(1);
    in.y[head * K + c] = in.scores[head * K + c] + gain * math::log(share);
  }
}

}  // namespace

void performer_prior_step(Tensor y, Tensor borders, Tensor at, Tensor scores, Tensor gain,
                          Tensor phi_q, Tensor phi_k, Tensor width) {
  const int64_t B = phi_q.dim(0), H = phi_q.dim(1), K = scores.dim(3);
  if (B * H == 0) return;
  const OnDevice before(at, y.device()), after(width, y.device());
  dispatch_float(y.dtype(), [&]<class T>() {
    const Step<T> in{y.data<T>(),
                     borders.data<double>(),
                     before.data<int64_t>(),
                     after.data<int64_t>(),
                     scores.data<T>(),
                     gain.data<T>(),
                     phi_q.data<T>(),
                     phi_k.data<T>(),
                     H,
                     phi_q.dim(3),
                     K,
                     phi_k.dim(2),
                     borders.dim(3)};
    launch("performer_prior_step", prior_step_kernel<T>, dim3(blocks_for(B * H, 1)), dim3(kThreads),
           size_t(K + 1) * sizeof(double), in);
  });
  if (at.device().is_cuda()) {
    check_cuda(cudaMemcpyAsync(at.data<int64_t>(), after.data<int64_t>(),
                               size_t(B) * sizeof(int64_t), cudaMemcpyDeviceToDevice, stream()),
               "performer_prior_step");
  } else {
    const Tensor now = width.to(at.device());
    std::copy_n(now.data<int64_t>(), B, at.data<int64_t>());
  }
}

}  // namespace brine::cuda
