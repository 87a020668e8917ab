// Linear attention: sums of all chunks at once, running sums over the chunks, then every tile of
// rows at once from its chunk's state and the chunk itself.
#include "tensor/cuda/estimator/linear_states.cuh"
#include "tensor/kernels/estimator.h"

namespace brine::cuda {
namespace {

using namespace chunked;

// den of the thread's rows: phi_q . (sums + eps) and the rows of the triangle. The 16 threads that
// share a row all get it.
template <class T>
__device__ void denominators(T (&den)[kPerThread], const T (&row_sums)[kPerThread],
                             const Matrix<T>& q, const double* sums, int r0, int m, double eps) {
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int r = r0 + thread_row() + i;
    double sum = double(row_sums[i]);
    for (int j = int(threadIdx.x) % kAcross; j < m; j += kAcross) {
      sum += double(q(r, j)) * (sums[j] + eps);
    }
    for (int with = kAcross / 2; with > 0; with /= 2) {
      sum += __shfl_xor_sync(kAllLanes, sum, with);
    }
    den[i] = T(sum);
  }
}

template <class T, bool kTensor>
__global__ __launch_bounds__(kThreads, kBlocks<T>) void forward_kernel(T* y, T* den, Work<T> work,
                                                                       States<T> states, double eps,
                                                                       int64_t first, int span) {
  Shared<T>& shared = *dynamic_shared<Shared<T>>();
  const int e = work.e(), m = work.m;
  Place at(first, int(work.heads), work.tokens, e, span);
  const int rows = work.rows(at.g);
  T below[kPerThread] = {};
  for (; at.more(); at.next()) {
    T sum[kPerThread][kPerThread] = {};
    if (at.r0 < rows) {
      const Matrix<T> q = work.queries(at.n), k = work.keys(at.g);
      const int place = state_of(work, at);
      T row_sums[kPerThread] = {};
      gather<false, false, kTensor>(
          shared, sum, row_sums, work, at, 1, m, q, work.state_at(states.state, place),
          [&](int) { return k; }, [](int) { return NoBias<T>{}; },
          [&](int) { return work.values(at.g); });
      if (at.fresh) {
        denominators(below, row_sums, q, states.sums + int64_t(place) * m, at.r0, m, eps);
      }
    }
    for (int i = 0; i < kPerThread; ++i) {
      const int r = at.r0 + thread_row() + i;
      const int64_t to = int64_t(at.n) * work.tokens + r;
      if (r >= work.tokens) continue;
      const T share = r < rows ? 1 / below[i] : T(0);
      for (int j = 0; j < kPerThread; ++j) sum[i][j] = r < rows ? sum[i][j] * share : T(0);
      put(y + to * e, at.c0 + thread_column(), sum[i], 0, e);
      if (at.c0 == 0 && thread_column() == 0) den[to] = r < rows ? below[i] : T(1);
    }
  }
}

}  // namespace

void linear_attention(Tensor y, Tensor den, Tensor phi_q, Tensor phi_k, Tensor identity, Tensor v,
                      Visibility visible, double eps) {
  if (y.numel() == 0) return;
  const char* name = "linear_attention";
  dispatch_float(y.dtype(), [&]<class T>() {
    const int64_t all = phi_k.dim(0) * phi_k.dim(1);
    const DeviceWidths widths(visible, phi_q.dim(2), y.device());
    const Work<T> work = work_of<T>(phi_q, phi_k, identity, v, widths.get(), false);
    const Turn<T> turn(work, all, y.device());
    for (int64_t first = 0; first < all; first += turn.groups()) {
      const int64_t count = std::min(turn.groups(), all - first);
      const States<T> states = turn.template states<false>(name, first, count);
      dispatch_products<T>([&]<bool kTensor>() {
        launch_tiles(name, work, count * work.heads, work.e(), forward_kernel<T, kTensor>,
                     y.data<T>(), den.data<T>(), work, states, eps, first);
      });
    }
  });
}

void linear_attention_state(Tensor state, Tensor sums, Tensor phi_k, Tensor identity, Tensor v,
                            Visibility visible) {
  dispatch_float(v.dtype(), [&]<class T>() {
    const int64_t all = phi_k.dim(0) * phi_k.dim(1);
    if (all == 0) return;
    const DeviceWidths widths({.causal = false, .lengths = visible.lengths}, phi_k.dim(2),
                              v.device());
    const Work<T> work = work_of<T>(phi_k, phi_k, identity, v, widths.get(), false);
    const Turn<T> turn(work, all, v.device());
    for (int64_t first = 0; first < all; first += turn.groups()) {
      turn.all_keys("linear_attention_state", state.data<T>() + first * work.m * work.e(),
                    sums.data<double>() + first * work.m, first,
                    std::min(turn.groups(), all - first));
    }
  });
}

}  // namespace brine::cuda
