// Tiled softmax attention in both directions, in 16 bits by cuDNN: each tile of queries iterates
// over the keys with a running maximum and sum (online softmax), so no map is stored. Heads beyond
// the widest tile use a kernel with one block per query.
#include <limits>

#include "tensor/cuda/attention/cudnn.h"
#include "tensor/cuda/attention/flash_tile.cuh"
#include "tensor/cuda/attention/online_softmax.cuh"
#include "tensor/cuda/core/common.cuh"
#include "tensor/kernels/attention.h"
#include "tensor/kernels/dense.h"

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

// ---- gradients: the probabilities are recomputed from the scores and the log-sum-exp
//
// A pass over tiles of queries gives dq, one over tiles of keys dk and dv. Both use one kernel: a
// stationary tile is combined with a sequence of moving tiles, and the scores are computed twice.
// Thus one block computes each sum, in a fixed order.

template <class T>
struct BackwardOperands {
  const T *q, *k, *v;  // [B, H, T, d], k and v [B, G, T, d]
  const T* dy;         // [B, T, H d]
  const T* lse;        // [B, H, T]
  T* dot;              // [B, H, T] = scale dy . y
  T scale;
};

// The rows of one head in a pass: the stationary and the moving ones. The scores are the products
// of `along`, their gradients the products of `across`.
template <class T>
struct Pair {
  HeadRows<const T> along, across;
};
template <class T>
struct Sides {
  Pair<T> stays, moves;
  const T *lse, *dot;  // of the head
};

template <bool ByKeys, class T>
__device__ inline Sides<T> sides_of(const BackwardOperands<T>& in, const AttentionSizes& at,
                                    int64_t bh) {
  const int64_t head = bh * at.T * at.d, group = at.keys_of(bh);
  const int64_t b = bh / at.H, h = bh % at.H;
  const Pair<T> queries{{in.q + head, at.d}, {in.dy + (b * at.T * at.H + h) * at.d, at.H * at.d}};
  const Pair<T> keys{{in.k + group, at.d}, {in.v + group, at.d}};
  return {ByKeys ? keys : queries, ByKeys ? queries : keys, in.lse + bh * at.T, in.dot + bh * at.T};
}

// Targets of the sums over `along` (dq or dk) and over `across` (dv); null = not needed.
template <class T>
struct Results {
  T *along, *across;
};

// dot = scale dy . y; a warp for each row of a head. Rows of padding are not read. dy is rounded as
// in the products from which dot is subtracted: the two cancel where values have a large common
// part.
template <class Layout, class T = typename Layout::T>
__global__ void inner_products_kernel(const BackwardOperands<T> in, const T* y,
                                      const AttentionSizes at, int64_t rows) {
  const int64_t r = piece() / kWarp;
  if (r >= rows) return;
  const int64_t bh = r / at.T, b = bh / at.H, t = r % at.T, lane = threadIdx.x % kWarp;
  const int64_t from = ((b * at.T + t) * at.H + bh % at.H) * at.d;
  T sum = 0;
  if (t < at.widths.valid(b)) {
    for (int64_t c = lane; c < at.d; c += kWarp)
      sum += Layout::rounded(in.dy[from + c]) * y[from + c];
  }
  sum = warp_sum(sum);
  if (lane == 0) in.dot[r] = in.scale * sum;
}

// The rows [begin, end) that rows [first, first + rows) of the other side meet.
struct Range {
  int64_t begin, end;
};
template <bool ByKeys>
__device__ inline Range range_of(const RowWidths& widths, int64_t valid, int64_t first,
                                 int64_t rows) {
  if (rows <= 0) return {0, 0};
  if (!widths.causal) return {0, valid};
  return ByKeys ? Range{first, valid} : Range{0, first + rows};
}

// scores -> probabilities; slopes, the gradients of the probabilities -> those of the unscaled
// scores. The tiles start at the rows `first` and `other`; there are no moving rows from `end` on.
template <bool ByKeys, class Layout, class T, int R, int C>
__device__ inline void differentiate(T (&scores)[R][C], T (&slopes)[R][C], const Sides<T>& side,
                                     int64_t first, int64_t valid, int64_t other, int64_t end,
                                     bool causal, T scale) {
  constexpr int Rows = ByKeys ? C : R;
  T shift[Rows], mean[Rows];
#pragma unroll
  for (int i = 0; i < Rows; ++i) {
    const int64_t query = ByKeys ? other + Layout::key(i) : first + Layout::row(i);
    shift[i] = query < valid ? side.lse[query] : T(0);
    mean[i] = query < valid ? side.dot[query] : T(0);
  }
#pragma unroll
  for (int i = 0; i < R; ++i) {
#pragma unroll
    for (int n = 0; n < C; ++n) {
      const int64_t stays = first + Layout::row(i), moves = other + Layout::key(n);
      const bool hidden = moves >= end || (causal && (ByKeys ? stays > moves : moves > stays));
      const int row = ByKeys ? n : i;
      const T p = hidden ? T(0) : math::exp_nonpositive(scores[i][n] * scale - shift[row]);
      scores[i][n] = p;
      slopes[i][n] = hidden ? T(0) : p * (scale * slopes[i][n] - mean[row]);
    }
  }
}

// to [T, d]: rows [first, first + M) of one head; those beyond `rows` become 0.
template <class Layout, class T, int R, int O>
__device__ inline void write_rows(T* to, const T (&sums)[R][O], int64_t first, int64_t rows,
                                  const AttentionSizes& at) {
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const int64_t m = Layout::row(i);
    if (first + m >= at.T) continue;
#pragma unroll
    for (int c = 0; c < O; ++c) {
      const int column = Layout::column(c);
      if (column < at.d) to[(first + m) * at.d + column] = m < rows ? sums[i][c] : T(0);
    }
  }
}

template <class Layout, bool ByKeys, class T = typename Layout::T>
__global__ void __launch_bounds__(Layout::threads, Layout::size <= 64 ? 2 : 1)
    differentiate_kernel(const Results<T> to, const BackwardOperands<T> in, const AttentionSizes at,
                         int64_t heads) {
  constexpr int M = Layout::rows, R = Layout::thread_rows, tile_size = M * Layout::step;
  T *along = dynamic_shared<T>(), *across = along + tile_size;
  T *moving = across + tile_size, *moving_across = moving + tile_size;
  T* room = moving_across + tile_size;
  const int d = int(at.d);
  // The long tiles of a causal mask come first: the last ones of queries, the first ones of keys.
  const int64_t bh = int64_t(blockIdx.x) % heads, tile = int64_t(blockIdx.x) / heads;
  const int64_t first = (ByKeys ? tile : at.tiles - 1 - tile) * M;
  const int64_t valid = at.widths.valid(bh / at.H);
  const int64_t rows = valid - first < 0 ? 0 : (valid - first < M ? valid - first : M);
  const Range range = range_of<ByKeys>(at.widths, valid, first, rows);
  const Sides<T> side = sides_of<ByKeys>(in, at, bh);
  auto load = [&](T* tile, const HeadRows<const T>& from, int64_t t, int64_t count) {
    load_tile<Layout>(tile, from.row(t), from.step, count, d, at.packed);
  };
  load(along, side.stays.along, first, rows);
  load(across, side.stays.across, first, rows);
  T sums[R][Layout::columns] = {}, sums_across[ByKeys ? R : 1][Layout::columns] = {};
  for (int64_t j = range.begin; j < range.end; j += M) {
    __syncthreads();
    load(moving, side.moves.along, j, range.end - j);
    load(moving_across, side.moves.across, j, range.end - j);
    __syncthreads();
    T scores[R][Layout::keys], slopes[R][Layout::keys];
    make_scores<Layout>(scores, along, moving);
    make_scores<Layout>(slopes, across, moving_across);
    differentiate<ByKeys, Layout>(scores, slopes, side, first, valid, j, range.end,
                                  at.widths.causal, in.scale);
    if constexpr (ByKeys) {
      if (to.across) Layout::add(sums_across, scores, moving_across, room);
    }
    if (to.along) Layout::add(sums, slopes, moving, room);
  }
  const int64_t head = bh * at.T * at.d;
  if (to.along) write_rows<Layout>(to.along + head, sums, first, rows, at);
  if constexpr (ByKeys) {
    if (to.across) write_rows<Layout>(to.across + head, sums_across, first, rows, at);
  }
}

// As above for one row with any number of channels.
template <class T, bool ByKeys>
__global__ void differentiate_wide_kernel(const Results<T> to, const BackwardOperands<T> in,
                                          const AttentionSizes at) {
  const int64_t d = at.d, bh = int64_t(blockIdx.x) / at.T, position = int64_t(blockIdx.x) % at.T;
  const int64_t valid = at.widths.valid(bh / at.H);
  const bool seen = position < valid;
  const Range range = range_of<ByKeys>(at.widths, valid, position, seen ? 1 : 0);
  const Sides<T> side = sides_of<ByKeys>(in, at, bh);
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
  T *along = dynamic_shared<T>(), *across = along + d, *sums = across + d, *more = sums + d;
  T *p = more + d, *slope = p + blockDim.x;
  for (int64_t c = threadIdx.x; c < d; c += blockDim.x) {
    along[c] = seen ? side.stays.along.row(position)[c] : T(0);
    across[c] = seen ? side.stays.across.row(position)[c] : T(0);
    sums[c] = more[c] = 0;
  }
  for (int64_t j = range.begin; j < range.end; j += blockDim.x) {
    const int n = int(range.end - j < blockDim.x ? range.end - j : blockDim.x);
    __syncthreads();
    for (int i = warp; i < n; i += int(blockDim.x) / kWarp) {
      const T *x = side.moves.along.row(j + i), *y = side.moves.across.row(j + i);
      T score = 0, rate = 0;
      for (int64_t c = lane; c < d; c += kWarp) {
        score += along[c] * x[c];
        rate += across[c] * y[c];
      }
      score = warp_sum(score);
      rate = warp_sum(rate);
      if (lane != 0) continue;
      const int64_t query = ByKeys ? j + i : position;
      p[i] = math::exp_nonpositive(score * in.scale - side.lse[query]);
      slope[i] = p[i] * (in.scale * rate - side.dot[query]);
    }
    __syncthreads();
    for (int64_t c = threadIdx.x; c < d; c += blockDim.x) {
      T sum = sums[c], other = more[c];
      for (int i = 0; i < n; ++i) {
        sum += slope[i] * side.moves.along.row(j + i)[c];
        if (ByKeys) other += p[i] * side.moves.across.row(j + i)[c];
      }
      sums[c] = sum;
      more[c] = other;
    }
  }
  const int64_t row = (bh * at.T + position) * d;
  for (int64_t c = threadIdx.x; c < d; c += blockDim.x) {
    if (to.along) to.along[row + c] = sums[c];
    if (to.across) to.across[row + c] = more[c];
  }
}

template <bool ByKeys, class T>
void launch_pass(const Results<T>& to, const BackwardOperands<T>& in, const T* y, AttentionSizes at,
                 int64_t heads, Dtype given) {
  if (!to.along && !to.across) return;
  const char* name = "flash_attention_backward";
  const int64_t rows = heads * at.T;
  const bool fits =
      dispatch_layout<T, BackwardPlain<T>::template Tile>(at.d, given, [&]<class Layout>() {
        at.tiles = (at.T + Layout::rows - 1) / Layout::rows;
        const size_t shared = (4 * Layout::rows * Layout::step + Layout::weights) * sizeof(T);
        if (shared > max_shared()) return false;
        launch_each(name, rows * kWarp, inner_products_kernel<Layout>, in, y, at, rows);
        launch(name, differentiate_kernel<Layout, ByKeys>, dim3(blocks_for(heads * at.tiles, 1)),
               dim3(Layout::threads), shared, to, in, at, heads);
        return true;
      });
  if (fits) return;
  launch_each(name, rows * kWarp, inner_products_kernel<PlainTile<T, 32, 4>>, in, y, at, rows);
  const int threads = 128;
  launch(name, differentiate_wide_kernel<T, ByKeys>, dim3(blocks_for(rows, 1)), dim3(threads),
         size_t(4 * at.d + 2 * threads) * sizeof(T), to, in, at);
}

// ---- attention of 16-bit tensors by cuDNN
//
// Lengths are converted to its form, heads that share keys and values get copies of them, its
// 16-bit result is widened, and rows of padding become 0.

// In addition to cuDNN's limits: the supported sizes of its fused kernels.
constexpr int64_t kWidest = 128;

// A sequence without tokens gets one token, whose result is discarded.
__global__ void lengths_kernel(int32_t* to, const RowWidths widths, int64_t B) {
  const int64_t b = piece();
  if (b >= B) return;
  const int64_t valid = widths.valid(b);
  to[b] = int32_t(valid > 1 ? valid : 1);
}

// y [B, T, C] = from in rows with tokens, 0 in the others.
template <class T>
__global__ void widen_kernel(float* y, const T* from, const RowWidths widths, int64_t C,
                             int64_t n) {
  const int64_t i = piece();
  if (i >= n) return;
  const int64_t row = i / C, b = row / widths.rows, t = row % widths.rows;
  y[i] = t < widths.valid(b) ? float(from[i]) : 0.0f;
}

// lse [B, H, T] = 0 in rows of padding.
__global__ void clear_kernel(float* lse, const RowWidths widths, int64_t H, int64_t n) {
  const int64_t i = piece();
  if (i >= n) return;
  const int64_t b = i / widths.rows / H, t = i % widths.rows;
  if (t >= widths.valid(b)) lse[i] = 0;
}

// x [B, G, T, d] -> [B, H, T, d], head h is group h G / H.
Tensor of_heads(const Tensor& x, int64_t H) {
  const int64_t B = x.dim(0), G = x.dim(1), T = x.dim(2), d = x.dim(3);
  if (G == H) return x;
  Tensor y = Tensor::empty({B, H, T, d}, x.dtype(), x.device());
  copy(y.view({B, G, H / G, T * d}), x.as_strided({B, G, H / G, T * d}, {G * T * d, T * d, 0, 1}));
  return y;
}

// As flash_attention(); rows of padding may be read, and must be finite. Returns whether it did the
// work: false, with nothing done, when cuDNN did not.
bool fused_flash_attention(Tensor y, Tensor lse, Tensor q, Tensor k, Tensor v,
                           const Visibility& visible, double scale) {
  constexpr int64_t kMax = int64_t(1) << 31;
  const int64_t B = q.dim(0), H = q.dim(1), T = q.dim(2), d = q.dim(3);
  if (!cudnn_serves() || !has_16_bits(q.dtype()) || d % 8 != 0 || d > kWidest ||
      q.numel() >= kMax) {
    return false;
  }
  const Device device = q.device();
  const DeviceWidths kept(visible, T, device);
  const RowWidths widths = kept.get();
  const bool padded = widths.lengths != nullptr;
  Tensor narrow = Tensor::empty(y.shape(), q.dtype(), device), lengths;
  if (padded) {
    lengths = Tensor::empty({B}, Dtype::i32, device);
    launch_each("flash_attention", B, lengths_kernel, lengths.data<int32_t>(), widths, B);
  }
  k = of_heads(k, H), v = of_heads(v, H);
  const FusedAttention attention{.type = q.dtype(),
                                 .B = B,
                                 .H = H,
                                 .T = T,
                                 .d = d,
                                 .causal = visible.causal,
                                 .padded = padded};
  const FusedAttentionData data{.q = q.raw(),
                                .k = k.raw(),
                                .v = v.raw(),
                                .lengths = padded ? lengths.data<int32_t>() : nullptr,
                                .y = narrow.raw(),
                                .lse = lse.data<float>(),
                                .scale = float(scale)};
  if (!cudnn_attention(attention, data, device)) return false;
  auto widen = [&]<class R>() {
    launch_each("flash_attention", y.numel(), widen_kernel<R>, y.data<float>(), narrow.data<R>(),
                widths, H * d, y.numel());
  };
  q.dtype() == Dtype::bf16 ? widen.template operator()<bf16>() : widen.template operator()<f16>();
  if (padded) {
    launch_each("flash_attention", lse.numel(), clear_kernel, lse.data<float>(), widths, H,
                lse.numel());
  }
  return true;
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

void flash_attention_backward(Tensor dq, Tensor dk, Tensor dv, Tensor dy, Tensor q, Tensor k,
                              Tensor v, Tensor y, Tensor lse, Visibility visible, double scale) {
  const int64_t heads = q.dim(0) * q.dim(1), T = q.dim(2), d = q.dim(3);
  if (heads * T == 0) return;
  const Dtype given = q.dtype();
  if (has_16_bits(given)) q = q.to(Dtype::f32), k = k.to(Dtype::f32), v = v.to(Dtype::f32);
  const DeviceWidths widths(visible, T, q.device());
  Tensor dot = Tensor::like(lse);
  dispatch_float(q.dtype(), [&]<class R>() {
    const BackwardOperands<R> in{q.data<R>(),   k.data<R>(),   v.data<R>(), dy.data<R>(),
                                 lse.data<R>(), dot.data<R>(), R(scale)};
    const bool packed = packed_rows<R>(d, in.q, in.k, in.v, in.dy);
    const AttentionSizes at{.H = q.dim(1),
                            .T = T,
                            .d = d,
                            .tiles = 0,
                            .group = q.dim(1) / k.dim(1),
                            .widths = widths.get(),
                            .packed = packed};
    launch_pass<false>(Results<R>{data_or_null<R>(dq), nullptr}, in, y.data<R>(), at, heads, given);
    launch_pass<true>(Results<R>{data_or_null<R>(dk), data_or_null<R>(dv)}, in, y.data<R>(), at,
                      heads, given);
  });
}

}  // namespace brine::cuda
