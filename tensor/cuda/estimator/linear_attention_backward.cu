// The gradients of linear attention: those of the queries from the sums over earlier chunks, those
// of keys and values from the sums over later chunks.
#include "tensor/cuda/estimator/linear_states.cuh"
#include "tensor/kernels/estimator.h"

namespace brine::cuda {
namespace {

using namespace chunked;

// share = 1 / den and below, the gradient of den times -1: a warp for every row.
template <class T>
__global__ void split_kernel(T* share, T* below, const T* dy, const T* y, const T* den,
                             int64_t rows, int64_t e) {
  const int64_t r = int64_t(blockIdx.x) * (kThreads / kWarp) + int64_t(threadIdx.x) / kWarp;
  if (r >= rows) return;
  double dot = 0;
  for (int64_t j = r * e + int64_t(threadIdx.x) % kWarp; j < (r + 1) * e; j += kWarp) {
    dot += double(dy[j]) * double(y[j]);
  }
  dot = warp_sum(dot);
  if (threadIdx.x % kWarp != 0) return;
  const T part = 1 / den[r];
  share[r] = part;
  below[r] = T(-dot * double(part));
}

// dq = numerators state^T + below (sums + eps) + lower(numerators values^T + below) keys
template <class T, bool kTensor>
__global__ __launch_bounds__(kThreads, kBlocks<T>) void queries_kernel(T* dq, Work<T> work,
                                                                       States<T> states, double eps,
                                                                       int64_t first, int span) {
  Shared<T>& shared = *dynamic_shared<Shared<T>>();
  const int e = work.e(), m = work.m;
  Place at(first, int(work.heads), work.tokens, m, span);
  const int rows = work.rows(at.g);
  const int place = state_of(work, at);
  const T* below = work.below + int64_t(at.n) * work.tokens;
  for (; at.more(); at.next()) {
    T sum[kPerThread][kPerThread] = {};
    if (at.r0 < rows) {
      T row_sums[kPerThread] = {};
      gather<false, true, kTensor>(
          shared, sum, row_sums, work, at, 1, e, work.numerators(at.n),
          work.state_at(states.state, place), [&](int) { return work.values(at.g); },
          [&](int) {
            return RowBias<T>{below, rows};
          },
          [&](int) { return work.keys(at.g); });
    }
    for (int i = 0; i < kPerThread; ++i) {
      const int r = at.r0 + thread_row() + i, column = at.c0 + thread_column();
      if (r >= work.tokens) continue;
      for (int j = 0; j < kPerThread && r < rows && column + j < m; ++j) {
        sum[i][j] += T(double(below[r]) * (states.sums[int64_t(place) * m + column + j] + eps));
      }
      put(dq + (int64_t(at.n) * work.tokens + r) * m, column, sum[i], 0, m);
    }
  }
}

// dk = values later^T + sums + upper(values numerators^T + below) queries, summed over the heads of
// the group
template <class T, bool kTensor>
__global__ __launch_bounds__(kThreads, kBlocks<T>) void keys_kernel(T* dk, Work<T> work,
                                                                    States<T> later, int64_t first,
                                                                    int span) {
  Shared<T>& shared = *dynamic_shared<Shared<T>>();
  const int e = work.e(), m = work.m;
  Place at(first, 1, work.tokens, m, span);
  const int rows = work.rows(at.g);
  const int place = state_of(work, at);
  const int64_t n0 = at.g * work.heads;  // the first head of the group
  for (; at.more(); at.next()) {
    T sum[kPerThread][kPerThread] = {};
    if (at.r0 < rows) {
      T row_sums[kPerThread] = {};
      gather<true, true, kTensor>(
          shared, sum, row_sums, work, at, int(work.heads), e, work.values(at.g),
          work.state_at(later.state, place), [&](int h) { return work.numerators(n0 + h); },
          [&](int h) { return ColumnBias<T>{work.below + (n0 + h) * work.tokens}; },
          [&](int h) { return work.queries(n0 + h); });
    }
    for (int i = 0; i < kPerThread; ++i) {
      const int r = at.r0 + thread_row() + i, column = at.c0 + thread_column();
      if (r >= work.tokens) continue;
      for (int j = 0; j < kPerThread && r < rows && column + j < m; ++j) {
        sum[i][j] += T(later.sums[int64_t(place) * m + column + j]);
      }
      put(dk + (int64_t(at.g) * work.tokens + r) * m, column, sum[i], 0, m);
    }
  }
}

// The values' gradient = keys later + upper(keys queries^T) numerators, summed over the heads of
// the group. Its columns before i are written to didentity [turn, T, i], or omitted if that is
// null.
template <class T, bool kTensor>
__global__ __launch_bounds__(kThreads, kBlocks<T>) void values_kernel(T* didentity, T* dv,
                                                                      Work<T> work, States<T> later,
                                                                      int64_t first, int span) {
  Shared<T>& shared = *dynamic_shared<Shared<T>>();
  const int e = work.e(), m = work.m, start = didentity ? 0 : work.i;
  Place at(first, 1, work.tokens, e - start, span);
  at.c0 += start;
  at.end += start;
  const int rows = work.rows(at.g);
  const int64_t n0 = at.g * work.heads;
  for (; at.more(); at.next()) {
    T sum[kPerThread][kPerThread] = {};
    if (at.r0 < rows) {
      T row_sums[kPerThread] = {};
      gather<true, false, kTensor>(
          shared, sum, row_sums, work, at, int(work.heads), m, work.keys(at.g),
          work.state_at(later.state, state_of(work, at)),
          [&](int h) { return work.queries(n0 + h); }, [](int) { return NoBias<T>{}; },
          [&](int h) { return work.numerators(n0 + h); });
    }
    for (int i = 0; i < kPerThread; ++i) {
      const int r = at.r0 + thread_row() + i, column = at.c0 + thread_column();
      if (r >= work.tokens) continue;
      if (didentity) {
        put(didentity + (int64_t(at.local) * work.tokens + r) * work.i, column, sum[i], 0, work.i);
      }
      put(dv + (int64_t(at.g) * work.tokens + r) * work.d, column, sum[i], work.i, e);
    }
  }
}

// didentity += the parts [turn, size] of the groups, in order.
template <class T>
__global__ void identity_kernel(T* didentity, const T* parts, int64_t turn, int64_t size) {
  const int64_t at = piece();
  if (at >= size) return;
  T sum = didentity[at];
  for (int64_t n = 0; n < turn; ++n) sum += parts[n * size + at];
  didentity[at] = sum;
}

// Targets of the gradients.
template <class T>
struct Gradients {
  T *dq, *dk, *dv, *didentity;
};

// The groups first .. first + count. parts: memory for didentity, undefined if it is not needed.
template <class T>
void backward_turn(const Gradients<T>& to, const Work<T>& work, const Turn<T>& turn,
                   const Tensor& parts, int64_t first, int64_t count, double eps) {
  const char* name = "linear_attention_backward";
  const States<T> earlier = turn.template states<false>(name, first, count);
  dispatch_products<T>([&]<bool kTensor>() {
    launch_tiles(name, work, count * work.heads, work.m, queries_kernel<T, kTensor>, to.dq, work,
                 earlier, eps, first);
  });
  const States<T> later = turn.template states<true>(name, first, count);
  T* partial = parts.defined() ? parts.data<T>() : nullptr;
  dispatch_products<T>([&]<bool kTensor>() {
    launch_tiles(name, work, count, work.m, keys_kernel<T, kTensor>, to.dk, work, later, first);
    launch_tiles(name, work, count, partial ? work.e() : work.d, values_kernel<T, kTensor>, partial,
                 to.dv, work, later, first);
  });
  if (partial) {
    launch_each(name, int64_t(work.tokens) * work.i, identity_kernel<T>, to.didentity, partial,
                count, int64_t(work.tokens) * work.i);
  }
}

}  // namespace

void linear_attention_backward(Tensor dphi_q, Tensor dphi_k, Tensor didentity, Tensor dv, Tensor dy,
                               Tensor y, Tensor den, Tensor phi_q, Tensor phi_k, Tensor identity,
                               Tensor v, Visibility visible, double eps) {
  if (y.numel() == 0) return;
  dispatch_float(y.dtype(), [&]<class T>() {
    const int64_t all = phi_k.dim(0) * phi_k.dim(1);
    const DeviceWidths widths(visible, phi_q.dim(2), y.device());
    Work<T> work = work_of<T>(phi_q, phi_k, identity, v, widths.get(), true);
    const Tensor share = Tensor::like(den), below = Tensor::like(den);
    work.dy = dy.data<T>();
    work.e_whole = work.e_whole && aligned(16, work.dy);
    work.share = share.data<T>();
    work.below = below.data<T>();
    launch("linear_attention_backward", split_kernel<T>,
           dim3(blocks_for(den.numel(), kThreads / kWarp)), dim3(kThreads), 0, share.data<T>(),
           below.data<T>(), dy.data<T>(), y.data<T>(), den.data<T>(), den.numel(), work.e());
    const Turn<T> turn(work, all, y.device());
    const bool identity_wanted = didentity.defined() && work.i > 0;
    const Tensor parts =
        identity_wanted ? Tensor::empty({turn.groups(), work.tokens, work.i}, y.dtype(), y.device())
                        : Tensor();
    const Gradients<T> to{dphi_q.data<T>(), dphi_k.data<T>(), dv.data<T>(),
                          identity_wanted ? didentity.data<T>() : nullptr};
    for (int64_t first = 0; first < all; first += turn.groups()) {
      backward_turn(to, work, turn, parts, first, std::min(turn.groups(), all - first), eps);
    }
  });
}

}  // namespace brine::cuda
