// Products of the query of one new token with the sums of keys over columns. Only the sums at the
// borders of columns are kept. A border moves by one key at a time, or by a unit of keys every so
// many tokens, which are added. Rows may be stored in 16 bits (S).
#pragma once

#include "tensor/base/stored.h"
#include "tensor/cuda/core/common.cuh"

namespace brine::cuda::columns {

// A row of the tensor that is summed: a key, or the sum over a unit of keys, which doubles.
enum class StepRows : uint8_t { keys, units };

template <class T, class S>
struct Step {
  double* borders;  // [B G, K + 1, padded]
  const int64_t *at, *width;
  const T* q;                                // [B H, m]
  const S* k;                                // [B G, R, m]
  int64_t G, heads, m, K, R, padded, units;  // heads: of a group
  StepRows rows;

  // The first row of column c; of K the row after the last one that a border counts.
  __device__ int64_t row(const math::SumColumns& columns, int64_t c) const {
    return rows == StepRows::keys ? columns.begin(c) : math::column_begin(c, columns.whole, K);
  }
};

// What the output of a head is made of, on every thread.
struct StepRow {
  int64_t head, w, K;
  const math::SumColumns& columns;
  const double* below;  // [K + 1] products with the sums before each border

  __device__ int64_t keys(int64_t c) const { return columns.keys(c); }
  __device__ double product(int64_t c) const { return below[c + 1] - below[c]; }
  __device__ double total() const { return below[K]; }
};

// Computes the borders of one group from scratch, a thread for each feature.
template <class T, class S>
__device__ void compute_borders(double* borders, const S* keys, const math::SumColumns& columns,
                                const Step<T, S>& in) {
  for (int64_t i = threadIdx.x; i < in.padded; i += blockDim.x) {
    double sum = 0;
    int64_t key = 0;
    for (int64_t c = 0; c <= in.K; ++c) {
      const int64_t end = i < in.m ? in.row(columns, c) : 0;
#pragma unroll 8
      for (; key < end; ++key) sum += widened(keys[key * in.m + i]);
      borders[c * in.padded + i] = sum;
    }
  }
}

// Moves one border from a row to another, and computes the query's product with it; by a warp.
template <class T, class S>
__device__ double move_border(double* sums, const T* q, const S* keys, int64_t from, int64_t to,
                              int64_t m) {
  double product = 0;
  for (int64_t i = int64_t(threadIdx.x) % kWarp; i < m; i += kWarp) {
    double sum = sums[i];
    for (int64_t key = from; key < to; ++key) sum += widened(keys[key * m + i]);
    if (from < to) sums[i] = sum;
    product += double(q[i]) * sum;
  }
  return warp_sum(product);
}

// q . row, by a warp.
template <class T, class S>
__device__ double product_of(const T* q, const S* row, int64_t m) {
  double product = 0;
  for (int64_t i = int64_t(threadIdx.x) % kWarp; i < m; i += kWarp) {
    product += double(q[i]) * widened(row[i]);
  }
  return warp_sum(product);
}

// A block for each group. Dynamic shared memory: K + 1 products.
template <class T, class S, class Out>
__global__ void step_kernel(const Step<T, S> in, Out out) {
  double* below = dynamic_shared<double>();
  const int64_t group = blockIdx.x, K = in.K, m = in.m, b = group / in.G;
  const int64_t before = in.at[b], w = in.width[b];
  double* borders = in.borders + group * (K + 1) * in.padded;
  const S* keys = in.k + group * in.R * m;
  const math::SumColumns columns(w, K, in.units), last(before, K, in.units);
  const bool units = in.rows == StepRows::units;
  const bool fresh = before == 0 || (units && columns.unit != last.unit);
  const int64_t rest = units && w % columns.unit ? columns.whole : -1;  // no border counts it
  if (fresh) compute_borders(borders, keys, columns, in);
  __syncthreads();
  const int64_t lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int64_t h = 0; h < in.heads; ++h) {
    const int64_t head = group * in.heads + h;
    // The first head moves the borders; a border stays with its warp.
    const bool moves = h == 0 && !fresh;
    for (int64_t c = warp; c <= K; c += blockDim.x / kWarp) {
      const int64_t to = in.row(columns, c), from = moves ? in.row(last, c) : to;
      double product = move_border(borders + c * in.padded, in.q + head * m, keys, from, to, m);
      if (c == K && rest >= 0) product += product_of(in.q + head * m, keys + rest * m, m);
      if (lane == 0) below[c] = c ? product : 0.0;  // before border 0 there are no keys
    }
    __syncthreads();
    const StepRow row{head, w, K, columns, below};
    for (int64_t c = threadIdx.x; c < K; c += blockDim.x) out(row, c);
    __syncthreads();
  }
}

// borders and at move to width; out(row, c) for each head and column.
template <class T, class S, class Out>
void column_step(const char* name, const Tensor& borders, const Tensor& at, const Tensor& q,
                 const Tensor& k, const Tensor& width, int64_t units, StepRows rows, Out out) {
  const int64_t B = q.dim(0), G = k.dim(1), K = borders.dim(2) - 1;
  if (B * G == 0) return;
  const OnDevice before(at, q.device()), after(width, q.device());
  const Step<T, S> in{borders.data<double>(),
                      before.data<int64_t>(),
                      after.data<int64_t>(),
                      q.data<T>(),
                      k.data<S>(),
                      G,
                      q.dim(1) / G,
                      q.dim(3),
                      K,
                      k.dim(2),
                      borders.dim(3),
                      units,
                      rows};
  launch(name, step_kernel<T, S, Out>, dim3(blocks_for(B * G, 1)), dim3(kThreads),
         size_t(K + 1) * sizeof(double), in, out);
  if (at.device().is_cuda()) {
    check_cuda(cudaMemcpyAsync(at.data<int64_t>(), after.data<int64_t>(),
                               size_t(B) * sizeof(int64_t), cudaMemcpyDeviceToDevice, stream()),
               name);
  } else {
    const Tensor now = width.to(at.device());
    std::copy_n(now.data<int64_t>(), B, at.data<int64_t>());
  }
}

}  // namespace brine::cuda::columns
