// The running softmax of attention by tiles of keys: shared by tiles of consecutive keys and of
// lists of blocks.
#pragma once

#include <limits>

#include "tensor/cuda/core/tile_layout.cuh"

namespace brine::cuda {

// The running softmax of a thread's rows, the same in the threads that share them. `kept` sums the
// weights as they are multiplied, rounded by the layout: the result is then a mean of values, and
// the rounding error is relative to the differences of the values, not to their common part.
template <class T, int R>
struct Running {
  T max[R], sum[R], kept[R];

  __device__ void begin() {
#pragma unroll
    for (int i = 0; i < R; ++i) {
      max[i] = std::numeric_limits<T>::lowest();
      sum[i] = kept[i] = 0;
    }
  }
};

// scores -> exp(scale (scores - maximum)), updates the running numbers and rescales the results so
// far.
template <class Layout, class T, int R, int C, int O>
__device__ inline void soften(T (&scores)[R][C], T (&out)[R][O], Running<T, R>& run, T scale) {
#pragma unroll
  for (int i = 0; i < R; ++i) {
    T max_score = scores[i][0];
#pragma unroll
    for (int j = 1; j < C; ++j) max_score = Max{}(max_score, scores[i][j]);
    max_score = Max{}(run.max[i], reduce_across<Layout>(max_score, Max{}));
    const T rescale = math::exp_nonpositive((run.max[i] - max_score) * scale),
            shift = max_score * scale;
    T sum = 0, kept = 0;
#pragma unroll
    for (int j = 0; j < C; ++j) {
      const T weight = math::exp_nonpositive(scores[i][j] * scale - shift);
      scores[i][j] = Layout::rounded(weight);
      sum += weight;
      kept += scores[i][j];
    }
    run.max[i] = max_score;
    run.sum[i] = run.sum[i] * rescale + reduce_across<Layout>(sum, Plus{});
    run.kept[i] = run.kept[i] * rescale + reduce_across<Layout>(kept, Plus{});
#pragma unroll
    for (int c = 0; c < O; ++c) out[i][c] *= rescale;
  }
}

}  // namespace brine::cuda
