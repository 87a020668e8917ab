// Attention over lists of key blocks, forward: the arithmetic of flash_attention.cu with the rows
// of several heads as the lanes of a tile, and the keys of a list instead of consecutive ones; and
// that of one new query per sequence over the cached keys of its list.
#include "tensor/base/stored.h"
#include "tensor/cuda/attention/cached_spans.cuh"
#include "tensor/cuda/attention/online_softmax.cuh"
#include "tensor/cuda/blocks/block_tile.cuh"
#include "tensor/cuda/core/packs.cuh"
#include "tensor/kernels/blocks.h"
#include "tensor/mask/blocks.h"

namespace brine::cuda {
namespace {

template <class T>
struct Operands {
  T *y, *lse;  // [B, H, rows, d], [B, H, rows]
  const T *q, *k, *v;
  T scale;
};

// scores = -infinity where the row of a lane does not see a key. Lanes without a row see all.
template <class Layout, class T, int R, int C>
__device__ inline void hide(T (&scores)[R][C], const ListKeys<Layout::rows>& keys,
                            const int (&rows)[R]) {
#pragma unroll
  for (int n = 0; n < C; ++n) {
    const int32_t from = keys.seen_from[Layout::key(n)];
#pragma unroll
    for (int i = 0; i < R; ++i) {
      if (rows[i] < from) scores[i][n] = -std::numeric_limits<T>::infinity();
    }
  }
}

// Rows of padding become 0.
template <class Layout, class T, int R, int O>
__device__ inline void finish(const Operands<T>& in, const BlockSizes& at, const BlockTile& tile,
                              const T (&out)[R][O], const Running<T, R>& run) {
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const int lane = Layout::row(i);
    if (tile.head(lane, at) >= tile.heads || tile.row(lane, at) >= tile.q_rows) continue;
    const bool valid = tile.row(lane, at) < tile.rows;
    const T share = valid ? 1 / run.kept[i] : T(0);
    const int64_t row = tile.of_q(lane, at);
#pragma unroll
    for (int c = 0; c < O; ++c) {
      const int column = Layout::column(c);
      if (column < at.d) in.y[row * at.d + column] = valid ? out[i][c] * share : T(0);
    }
    if (Layout::key(0) == 0) {
      in.lse[row] = valid ? run.max[i] * in.scale + math::log(run.sum[i]) : T(0);
    }
  }
}

template <class Layout, class T = typename Layout::T>
__global__ void __launch_bounds__(Layout::threads)
    attend_kernel(const Operands<T> in, const BlockSizes at) {
  constexpr int M = Layout::rows, R = Layout::thread_rows;
  T* q = dynamic_shared<T>();
  T *kv = q + M * Layout::step, *room = kv + M * Layout::step;
  auto& keys = *reinterpret_cast<ListKeys<M>*>(room + Layout::weights);
  const BlockTile tile(at);
  const bool works = has_lanes<Layout>(tile.heads * at.span);
  load_rows<Layout>(
      q, [&](int l) { return tile.is_valid(l, at) ? in.q + tile.of_q(l, at) * at.d : nullptr; },
      at.d, at.packed);
  int rows[R];
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const int lane = Layout::row(i);
    rows[i] = tile.is_valid(lane, at) ? tile.r0 + tile.row(lane, at)
                                      : std::numeric_limits<int32_t>::max();
  }
  auto load = [&](const T* from) {
    const T* first = from + tile.bg * at.T * at.d;
    load_rows<Layout>(
        kv, [&](int n) { return keys.key[n] < 0 ? nullptr : first + keys.key[n] * at.d; }, at.d,
        at.packed);
  };
  T out[R][Layout::columns] = {};
  Running<T, R> run;
  run.begin();
  for (int64_t j = 0; j < tile.keys; j += M) {
    __syncthreads();
    keys.load(tile, at, j);
    __syncthreads();
    load(in.k);
    __syncthreads();
    T scores[R][Layout::keys];
    if (works) {
      make_scores<Layout>(scores, q, kv);
      hide<Layout>(scores, keys, rows);
      soften<Layout>(scores, out, run, in.scale);
    }
    __syncthreads();
    load(in.v);
    __syncthreads();
    if (works) Layout::add(out, scores, kv, room);
  }
  finish<Layout>(in, at, tile, out, run);
}

// One query with any number of channels against the keys of its list, as many at a time as there
// are threads. A block for each row of q; `at` has passes of one lane.
template <class T>
__global__ void attend_wide_kernel(const Operands<T> in, const BlockSizes at) {
  __shared__ ListKeys<128> keys;
  const int64_t d = at.d;
  const BlockTile tile(at);
  const int64_t row = tile.of_q(0, at), group = tile.bg * at.T * d;
  if (tile.q_rows == 0) return;
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
  T *out = dynamic_shared<T>(), *q = out + d, *p = q + d;
  for (int64_t c = threadIdx.x; c < d; c += blockDim.x) {
    q[c] = tile.rows ? in.q[row * d + c] : T(0);
    out[c] = 0;
  }
  constexpr T kLowest = std::numeric_limits<T>::lowest();
  T max_score = kLowest, sum = 0;
  for (int64_t j = 0; j < tile.keys; j += blockDim.x) {
    __syncthreads();
    keys.load(tile, at, j);
    __syncthreads();
    for (int n = warp; n < int(blockDim.x); n += int(blockDim.x) / kWarp) {
      if (keys.seen_from[n] > tile.r0) continue;
      const T* k = in.k + group + keys.key[n] * d;
      T dot = 0;
      for (int64_t c = lane; c < d; c += kWarp) dot += q[c] * k[c];
      dot = warp_sum(dot);
      if (lane == 0) p[n] = dot;
    }
    __syncthreads();
    const bool visible = keys.seen_from[threadIdx.x] <= tile.r0;
    const T score = visible ? p[threadIdx.x] : kLowest, before = max_score;
    max_score = Max{}(max_score, block_reduce(score, kLowest, Max{}));
    const T rescale = math::exp_nonpositive((before - max_score) * in.scale);
    const T share = visible ? math::exp_nonpositive(score * in.scale - max_score * in.scale) : T(0);
    p[threadIdx.x] = share;
    sum = sum * rescale + block_sum(share);
    __syncthreads();
    for (int64_t c = threadIdx.x; c < d; c += blockDim.x) {
      T value = out[c] * rescale;
      for (int n = 0; n < int(blockDim.x); ++n) {
        if (p[n] > 0) value += p[n] * in.v[group + keys.key[n] * d + c];
      }
      out[c] = value;
    }
  }
  for (int64_t c = threadIdx.x; c < d; c += blockDim.x) {
    in.y[row * d + c] = tile.rows ? out[c] / sum : T(0);
  }
  if (threadIdx.x == 0) in.lse[row] = tile.rows ? max_score * in.scale + math::log(sum) : T(0);
}

// Positions in the list of a group; every block before the last is complete.
struct CachedBlocks {
  const int32_t *counts, *entries;
  const int64_t* width;  // of a sequence
  int64_t H, group, S, capacity, block;

  __device__ Positions positions(int64_t head) const {
    const int64_t bg = head / group, count = counts[bg];
    if (count == 0) return {0, 0};
    const int64_t last = entry_block(entries[bg * capacity + count - 1]) * block;
    const int64_t left = width[head / H] - last;
    return {0, (count - 1) * block + (left < block ? left : block)};
  }
  __device__ int64_t row(int64_t head, int64_t position) const {
    const int64_t bg = head / group, e = quotient(position, block);
    return bg * S + entry_block(entries[bg * capacity + e]) * block + position - e * block;
  }
};

}  // namespace

void block_attention(Tensor y, Tensor lse, Tensor q, Tensor k, Tensor v, BlockMask mask,
                     Visibility visible, double scale) {
  const int64_t d = q.dim(3);
  if (lse.numel() == 0) return;
  const Dtype given = q.dtype();
  if (has_16_bits(given) && tensor_cores(given) &&
      block_attention_half(y, lse, q, k, v, BlockCall(mask, visible, q, k),
                           q.dim(1) / k.dim(1) * mask.tile, scale)) {
    return;
  }
  if (has_16_bits(given)) q = q.to(Dtype::f32), k = k.to(Dtype::f32), v = v.to(Dtype::f32);
  const BlockCall call(mask, visible, q, k);
  const char* name = "block_attention";
  dispatch_float(q.dtype(), [&]<class T>() {
    const Operands<T> in{y.data<T>(), lse.data<T>(), q.data<T>(),
                         k.data<T>(), v.data<T>(),   T(scale)};
    const bool packed = packed_rows<T>(d, in.q, in.k, in.v);
    const bool fits = dispatch_layout<T, Plain<T>::template Tile>(d, given, [&]<class Layout>() {
      const size_t shared = (2 * Layout::rows * Layout::step + Layout::weights) * sizeof(T) +
                            sizeof(ListKeys<Layout::rows>);
      if (shared > max_shared()) return false;
      const BlockSizes at = call.sizes(Layout::rows, packed);
      launch(name, attend_kernel<Layout>, at.grid(), dim3(Layout::threads), shared, in, at);
      return true;
    });
    if (fits) return;
    const int threads = 128;
    const BlockSizes at = call.sizes(1, packed);
    launch(name, attend_wide_kernel<T>, at.grid(), dim3(threads),
           size_t(2 * d + threads) * sizeof(T), in, at);
  });
}

void block_attention_step(Tensor y, Tensor q, Tensor k, Tensor v, BlockMask mask, Tensor width,
                          double scale) {
  if (q.numel() == 0) return;
  const int64_t H = q.dim(1), S = k.dim(2), max_keys = mask.capacity() * mask.block;
  const OnDevice widths(width, y.device());
  const CachedBlocks keys{.counts = mask.counts.data<int32_t>(),
                          .entries = mask.entries.data<int32_t>(),
                          .width = widths.data<int64_t>(),
                          .H = H,
                          .group = H / k.dim(1),
                          .S = S,
                          .capacity = mask.capacity(),
                          .block = mask.block};
  dispatch_stored(y.dtype(), k.dtype(), [&]<class T, class Stored>() {
    attend_spans<T, Stored>("block_attention_step", y, q, k, v, keys, std::min(S, max_keys), scale);
  });
}

}  // namespace brine::cuda
