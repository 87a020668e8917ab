// Tiled softmax attention: each tile of queries iterates over the keys with a running maximum and
// sum (online softmax), so no map is stored. Heads beyond the widest tile use a kernel with one
// block per query.
#include <limits>

#include "tensor/cuda/attention/flash_tile.cuh"
#include "tensor/cuda/attention/fused.h"
#include "tensor/cuda/attention/online_softmax.cuh"

namespace brine::cuda {
namespace {

template <class T>
struct Operands {
  T *y, *lse;  // [B, T, H d], [B, H, T]
  const T *q, *k, *v;
  T scale;
};

// scores = -infinity where key j + n is beyond the visible ones of row first + m.
template <class Layout, class T, int R, int C>
__device__ inline void hide(T (&scores)[R][C], int64_t j, int64_t first, int64_t visible,
                            bool causal) {
#pragma unroll
  for (int i = 0; i < R; ++i) {
#pragma unroll
    for (int n = 0; n < C; ++n) {
      const int64_t key = j + Layout::key(n);
      if (key >= visible || (causal && key > first + Layout::row(i))) {
        scores[i][n] = -std::numeric_limits<T>::infinity();
      }
    }
  }
}

// Rows [first, first + M) of head h of sequence b; those beyond `rows` become 0.
template <class Layout, class T, int R, int O>
__device__ inline void finish(const Operands<T>& in, const AttentionSizes& at, int64_t bh,
                              int64_t first, int64_t rows, const T (&out)[R][O],
                              const Running<T, R>& run) {
  const int64_t b = bh / at.H, h = bh % at.H;
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const int64_t m = Layout::row(i), t = first + m;
    if (t >= at.T) continue;
    const bool valid = m < rows;
    const T share = valid ? 1 / run.kept[i] : T(0);
    T* y = in.y + ((b * at.T + t) * at.H + h) * at.d;
#pragma unroll
    for (int c = 0; c < O; ++c) {
      const int column = Layout::column(c);
      if (column < at.d) y[column] = valid ? out[i][c] * share : T(0);
    }
    if (Layout::key(0) == 0) {
      in.lse[bh * at.T + t] = valid ? run.max[i] * in.scale + math::log(run.sum[i]) : T(0);
    }
  }
}

template <class Layout, class T = typename Layout::T>
__global__ void __launch_bounds__(Layout::threads)
    attend_kernel(const Operands<T> in, const AttentionSizes at, int64_t heads) {
  constexpr int M = Layout::rows, R = Layout::thread_rows;
  T* q = dynamic_shared<T>();
  T *kv = q + M * Layout::step, *room = kv + M * Layout::step;
  // The long tiles of a causal mask come first, so that blocks finish at similar times.
  const int64_t bh = int64_t(blockIdx.x) % heads, b = bh / at.H;
  const int64_t first = (at.tiles - 1 - int64_t(blockIdx.x) / heads) * M;
  const int64_t valid = at.widths.valid(b);
  const int64_t rows = valid - first < 0 ? 0 : (valid - first < M ? valid - first : M);
  const int64_t visible = rows == 0 ? 0 : (at.widths.causal ? first + rows : valid);
  const int64_t head = bh * at.T * at.d, keys = at.keys_of(bh);
  const int d = int(at.d);
  load_tile<Layout>(q, in.q + head + first * d, d, rows, d, at.packed);
  T out[R][Layout::columns] = {};
  Running<T, R> run;
  run.begin();
  for (int64_t j = 0; j < visible; j += M) {
    __syncthreads();
    load_tile<Layout>(kv, in.k + keys + j * d, d, visible - j, d, at.packed);
    __syncthreads();
    T scores[R][Layout::keys];
    make_scores<Layout>(scores, q, kv);
    if (j + M > visible || (at.widths.causal && j + M > first)) {
      hide<Layout>(scores, j, first, visible, at.widths.causal);
    }
    soften<Layout>(scores, out, run, in.scale);
    __syncthreads();
    load_tile<Layout>(kv, in.v + keys + j * d, d, visible - j, d, at.packed);
    __syncthreads();
    Layout::add(out, scores, kv, room);
  }
  finish<Layout>(in, at, bh, first, rows, out, run);
}

// One query with any number of channels against its keys, as many at a time as there are threads.
template <class T>
__global__ void attend_wide_kernel(const Operands<T> in, const AttentionSizes at) {
  const int64_t d = at.d, bh = int64_t(blockIdx.x) / at.T, t = int64_t(blockIdx.x) % at.T;
  const int64_t b = bh / at.H, head = bh * at.T * d, visible = at.widths(b, t);
  const int64_t group = at.keys_of(bh);
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
  T *out = dynamic_shared<T>(), *q = out + d, *p = q + d;
  for (int64_t c = threadIdx.x; c < d; c += blockDim.x) {
    q[c] = visible ? in.q[head + t * d + c] : T(0);
    out[c] = 0;
  }
  T max_score = std::numeric_limits<T>::lowest(), sum = 0;
  for (int64_t j = 0; j < visible; j += blockDim.x) {
    const int keys = int(visible - j < blockDim.x ? visible - j : blockDim.x);
    __syncthreads();
    for (int n = warp; n < keys; n += int(blockDim.x) / kWarp) {
      const T* k = in.k + group + (j + n) * d;
      T dot = 0;
      for (int64_t c = lane; c < d; c += kWarp) dot += q[c] * k[c];
      dot = warp_sum(dot);
      if (lane == 0) p[n] = dot;
    }
    __syncthreads();
    const bool valid = int(threadIdx.x) < keys;
    const T score = valid ? p[threadIdx.x] : std::numeric_limits<T>::lowest();
    const T before = max_score;
    max_score = Max{}(max_score, block_reduce(score, std::numeric_limits<T>::lowest(), Max{}));
    const T rescale = math::exp_nonpositive((before - max_score) * in.scale);
    const T share = valid ? math::exp_nonpositive(score * in.scale - max_score * in.scale) : T(0);
    if (valid) p[threadIdx.x] = share;
    sum = sum * rescale + block_sum(share);
    __syncthreads();
    for (int64_t c = threadIdx.x; c < d; c += blockDim.x) {
      T value = out[c] * rescale;
      for (int n = 0; n < keys; ++n) value += p[n] * in.v[group + (j + n) * d + c];
      out[c] = value;
    }
  }
  T* y = in.y + ((b * at.T + t) * at.H + bh % at.H) * d;
  for (int64_t c = threadIdx.x; c < d; c += blockDim.x) y[c] = visible ? out[c] / sum : T(0);
  if (threadIdx.x == 0)
    in.lse[bh * at.T + t] = visible ? max_score * in.scale + math::log(sum) : T(0);
}

}  // namespace

void flash_attention(Tensor y, Tensor lse, Tensor q, Tensor k, Tensor v, Visibility visible,
                     double scale) {
  const int64_t heads = q.dim(0) * q.dim(1), T = q.dim(2), d = q.dim(3);
  if (heads * T == 0) return;
  const Dtype given = q.dtype();
  if (has_16_bits(given)) {
    if (fused_flash_attention(y, lse, q, k, v, visible, scale)) return;
    q = q.to(Dtype::f32), k = k.to(Dtype::f32), v = v.to(Dtype::f32);
  }
  const DeviceWidths widths(visible, T, q.device());
  dispatch_float(q.dtype(), [&]<class R>() {
    const Operands<R> in{y.data<R>(), lse.data<R>(), q.data<R>(),
                         k.data<R>(), v.data<R>(),   R(scale)};
    AttentionSizes at{.H = q.dim(1),
                      .T = T,
                      .d = d,
                      .tiles = 0,
                      .group = q.dim(1) / k.dim(1),
                      .widths = widths.get(),
                      .packed = packed_rows<R>(d, in.q, in.k, in.v)};
    const bool fits = dispatch_layout<R, Plain<R>::template Tile>(d, given, [&]<class Layout>() {
      at.tiles = (T + Layout::rows - 1) / Layout::rows;
      const size_t shared = (2 * Layout::rows * Layout::step + Layout::weights) * sizeof(R);
      if (shared > max_shared()) return false;
      launch("flash_attention", attend_kernel<Layout>, dim3(blocks_for(heads * at.tiles, 1)),
             dim3(Layout::threads), shared, in, at, heads);
      return true;
    });
    if (fits) return;
    const int threads = 128;
    launch("flash_attention", attend_wide_kernel<R>, dim3(blocks_for(heads * T, 1)), dim3(threads),
           size_t(2 * d + threads) * sizeof(R), in, at);
  });
}

}  // namespace brine::cuda
