// The gradients of attention over lists of key blocks: the probabilities are recomputed from the
// scores and the log-sum-exp.
//
// As in flash_attention.cu there are two passes, so that one thread block computes each
// sum, in a fixed order. That of queries goes over the list of a tile. That of keys goes over the
// tiles that keep a block (block_lists.cuh), in slices.
#include "tensor/cuda/blocks/block_lists.cuh"
#include "tensor/kernels/blocks.h"

namespace brine::cuda {
namespace {

constexpr const char* kName = "block_attention_backward";
constexpr int kThreadsOfWide = 128;

template <class T>
struct BackwardOperands {
  const T *q, *dy;   // [B, H, rows, d]
  const T *k, *v;    // [B, G, T, d]
  const T *lse, *y;  // [B, H, rows]; as q
  T* dot;            // [B, H, rows] = scale dy . y
  T scale;
};

// A warp for each row of q; rows of padding are not read. dy is rounded as in the products from
// which dot is subtracted.
template <class Layout, class T = typename Layout::T>
__global__ void inner_products_kernel(const BackwardOperands<T> in, const BlockSizes at,
                                      int64_t rows) {
  const int64_t r = piece() / kWarp;
  if (r >= rows) return;
  const int64_t b = r / at.rows / at.H, row = r % at.rows, n = row / at.R;
  T sum = 0;
  if (row - n * at.R < at.valid(b, n)) {
    for (int64_t c = threadIdx.x % kWarp; c < at.d; c += kWarp)
      sum += Layout::rounded(in.dy[r * at.d + c]) * in.y[r * at.d + c];
  }
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) in.dot[r] = in.scale * sum;
}

// A score -> its probability, a gradient of a probability -> that of the unscaled score.
template <class T>
__device__ inline void differentiate(T& score, T& slope, bool hidden, T shift, T mean, T scale) {
  const T p = hidden ? T(0) : math::exp_nonpositive(score * scale - shift);
  score = p;
  slope = hidden ? T(0) : p * (scale * slope - mean);
}

// ---- the gradients of queries
template <class Layout, class T = typename Layout::T>
__global__ void __launch_bounds__(Layout::threads, Layout::size <= 64 ? 2 : 1)
    queries_kernel(T* dq, const BackwardOperands<T> in, const BlockSizes at) {
  constexpr int M = Layout::rows, R = Layout::thread_rows, tile_size = M * Layout::step;
  T *q = dynamic_shared<T>(), *dy = q + tile_size, *k = dy + tile_size, *v = k + tile_size;
  T* room = v + tile_size;
  auto& keys = *reinterpret_cast<ListKeys<M>*>(room + Layout::weights);
  const BlockTile tile(at);
  const bool works = has_lanes<Layout>(tile.heads * at.span);
  auto load_lanes = [&](T* to, const T* from) {
    load_rows<Layout>(
        to, [&](int l) { return tile.is_valid(l, at) ? from + tile.of_q(l, at) * at.d : nullptr; },
        at.d, at.packed);
  };
  load_lanes(q, in.q);
  load_lanes(dy, in.dy);
  int rows[R];
  T shift[R], mean[R];
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const int lane = Layout::row(i);
    const bool valid = tile.is_valid(lane, at);
    rows[i] = valid ? tile.r0 + tile.row(lane, at) : -1;
    shift[i] = valid ? in.lse[tile.of_q(lane, at)] : T(0);
    mean[i] = valid ? in.dot[tile.of_q(lane, at)] : T(0);
  }
  auto load_keys = [&](T* to, const T* from) {
    const T* first = from + tile.bg * at.T * at.d;
    load_rows<Layout>(
        to, [&](int n) { return keys.key[n] < 0 ? nullptr : first + keys.key[n] * at.d; }, at.d,
        at.packed);
  };
  T sums[R][Layout::columns] = {};
  for (int64_t j = 0; j < tile.keys; j += M) {
    __syncthreads();
    keys.load(tile, at, j);
    __syncthreads();
    load_keys(k, in.k);
    load_keys(v, in.v);
    __syncthreads();
    if (!works) continue;
    T scores[R][Layout::keys], slopes[R][Layout::keys];
    make_scores<Layout>(scores, q, k);
    make_scores<Layout>(slopes, dy, v);
#pragma unroll
    for (int n = 0; n < Layout::keys; ++n) {
      const int32_t from = keys.seen_from[Layout::key(n)];
#pragma unroll
      for (int i = 0; i < R; ++i) {
        differentiate(scores[i][n], slopes[i][n], rows[i] < from, shift[i], mean[i], in.scale);
      }
    }
    Layout::add(sums, slopes, k, room);
  }
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const int lane = Layout::row(i);
    if (tile.head(lane, at) >= tile.heads || tile.row(lane, at) >= tile.q_rows) continue;
#pragma unroll
    for (int c = 0; c < Layout::columns; ++c) {
      const int column = Layout::column(c);
      if (column < at.d) dq[tile.of_q(lane, at) * at.d + column] = rows[i] < 0 ? T(0) : sums[i][c];
    }
  }
}

// A row with any number of channels; `at` has passes of one lane.
template <class T>
__global__ void queries_wide_kernel(T* dq, const BackwardOperands<T> in, const BlockSizes at) {
  __shared__ ListKeys<kThreadsOfWide> keys;
  __shared__ T slopes[kThreadsOfWide];
  const int64_t d = at.d;
  const BlockTile tile(at);
  if (tile.q_rows == 0) return;
  const int64_t row = tile.of_q(0, at), group = tile.bg * at.T * d;
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
  T *q = dynamic_shared<T>(), *dy = q + d, *sums = dy + d;
  for (int64_t c = threadIdx.x; c < d; c += blockDim.x) {
    q[c] = tile.rows ? in.q[row * d + c] : T(0);
    dy[c] = tile.rows ? in.dy[row * d + c] : T(0);
    sums[c] = 0;
  }
  const T shift = tile.rows ? in.lse[row] : T(0), mean = tile.rows ? in.dot[row] : T(0);
  for (int64_t j = 0; j < tile.keys; j += kThreadsOfWide) {
    __syncthreads();
    keys.load(tile, at, j);
    __syncthreads();
    for (int n = warp; n < kThreadsOfWide; n += kThreadsOfWide / kWarp) {
      const bool hidden = keys.seen_from[n] > tile.r0;
      T score = 0, slope = 0;
      for (int64_t c = lane; c < d && !hidden; c += kWarp) {
        score += q[c] * in.k[group + keys.key[n] * d + c];
        slope += dy[c] * in.v[group + keys.key[n] * d + c];
      }
      score = warp_sum(score);
      slope = warp_sum(slope);
      differentiate(score, slope, hidden, shift, mean, in.scale);
      if (lane == 0) slopes[n] = slope;
    }
    __syncthreads();
    for (int64_t c = threadIdx.x; c < d; c += blockDim.x) {
      T sum = sums[c];
      for (int n = 0; n < kThreadsOfWide; ++n) {
        if (keys.seen_from[n] <= tile.r0) sum += slopes[n] * in.k[group + keys.key[n] * d + c];
      }
      sums[c] = sum;
    }
  }
  for (int64_t c = threadIdx.x; c < d; c += blockDim.x) dq[row * d + c] = sums[c];
}

// ---- the gradients of keys and values
// The lanes of a chunk: their rows of all heads of q, -1 where none reads the block, and ordinals.
template <class T, int N>
struct Lanes {
  int64_t row[N], ordinal[N];
  T shift[N], mean[N];

  // Of the lanes from j on; the caller synchronises.
  __device__ void load(const KeyTile<T>& of, const BackwardOperands<T>& in, const BlockSizes& at,
                       int64_t j) {
    for (int i = threadIdx.x; i < N; i += blockDim.x) {
      row[i] = ordinal[i] = -1;
      shift[i] = mean[i] = 0;
      if (j + i >= of.lanes) continue;
      const int64_t head_rows = quotient(j + i, at.R), r = j + i - head_rows * at.R;
      const int64_t e = quotient(head_rows, at.heads), h = head_rows - e * at.heads;
      const int32_t entry = of.tiles[e];
      const int64_t n = entry_block(entry);
      if (r < entry_row(entry) || r >= at.valid(of.b, n)) continue;
      row[i] = (of.bg * at.heads + h) * at.rows + n * at.R + r;
      ordinal[i] = at.number(n) * at.R + r;
      shift[i] = in.lse[row[i]];
      mean[i] = in.dot[row[i]];
    }
  }
};

template <class Layout, class T = typename Layout::T>
__global__ void __launch_bounds__(Layout::threads, Layout::size <= 64 ? 2 : 1)
    keys_kernel(const KeySums<T> to, const BackwardOperands<T> in, const BlockSizes at) {
  constexpr int M = Layout::rows, R = Layout::thread_rows, tile_size = M * Layout::step;
  T *k = dynamic_shared<T>(), *v = k + tile_size, *q = v + tile_size, *dy = q + tile_size;
  T* room = dy + tile_size;
  auto& lanes = *reinterpret_cast<Lanes<T, M>*>(room + Layout::weights);
  const KeyTile<T> tile(to, at);
  if (tile.keys == 0 || tile.slice >= tile.used) return;
  const bool works = has_lanes<Layout>(tile.keys);
  auto load_keys = [&](T* stationary, const T* from) {
    const T* first = from + (tile.bg * at.T + tile.first) * at.d;
    load_rows<Layout>(
        stationary, [&](int n) { return n < tile.keys ? first + n * at.d : nullptr; }, at.d,
        at.packed);
  };
  load_keys(k, in.k);
  load_keys(v, in.v);
  auto load_lanes = [&](T* moving, const T* from) {
    load_rows<Layout>(
        moving, [&](int l) { return lanes.row[l] < 0 ? nullptr : from + lanes.row[l] * at.d; },
        at.d, at.packed);
  };
  T dk[R][Layout::columns] = {}, dv[R][Layout::columns] = {};
  for (int64_t j = 0; j < tile.lanes; j += M) {
    __syncthreads();
    lanes.load(tile, in, at, j);
    __syncthreads();
    load_lanes(q, in.q);
    load_lanes(dy, in.dy);
    __syncthreads();
    if (!works) continue;
    T scores[R][Layout::keys], slopes[R][Layout::keys];
    make_scores<Layout>(scores, k, q);
    make_scores<Layout>(slopes, v, dy);
#pragma unroll
    for (int n = 0; n < Layout::keys; ++n) {
      const int lane = Layout::key(n);
      const int64_t seen = lanes.ordinal[lane] - tile.first;
#pragma unroll
      for (int i = 0; i < R; ++i) {
        const bool hidden = Layout::row(i) >= tile.keys || Layout::row(i) > seen;
        differentiate(scores[i][n], slopes[i][n], hidden, lanes.shift[lane], lanes.mean[lane],
                      in.scale);
      }
    }
    if (to.dv) Layout::add(dv, scores, dy, room);
    if (to.dk) Layout::add(dk, slopes, q, room);
  }
  T *all_dk = tile.first_sums(to, at, to.dk, to.dk_parts),
    *all_dv = tile.first_sums(to, at, to.dv, to.dv_parts);
#pragma unroll
  for (int i = 0; i < R; ++i) {
    if (Layout::row(i) >= tile.keys) continue;
#pragma unroll
    for (int c = 0; c < Layout::columns; ++c) {
      const int column = Layout::column(c);
      if (column >= at.d) continue;
      if (all_dk) all_dk[Layout::row(i) * at.d + column] = dk[i][c];
      if (all_dv) all_dv[Layout::row(i) * at.d + column] = dv[i][c];
    }
  }
}

// One key with any number of channels: `to` has parts of one key.
template <class T>
__global__ void keys_wide_kernel(const KeySums<T> to, const BackwardOperands<T> in,
                                 const BlockSizes at) {
  __shared__ Lanes<T, kThreadsOfWide> lanes;
  __shared__ T weights[kThreadsOfWide], slopes[kThreadsOfWide];
  const int64_t d = at.d;
  const KeyTile<T> tile(to, at);
  if (tile.keys == 0 || tile.slice >= tile.used) return;
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
  T *k = dynamic_shared<T>(), *v = k + d, *dk = v + d, *dv = dk + d;
  for (int64_t c = threadIdx.x; c < d; c += blockDim.x) {
    k[c] = in.k[(tile.bg * at.T + tile.first) * d + c];
    v[c] = in.v[(tile.bg * at.T + tile.first) * d + c];
    dk[c] = dv[c] = 0;
  }
  for (int64_t j = 0; j < tile.lanes; j += kThreadsOfWide) {
    __syncthreads();
    lanes.load(tile, in, at, j);
    __syncthreads();
    for (int n = warp; n < kThreadsOfWide; n += kThreadsOfWide / kWarp) {
      const bool hidden = lanes.ordinal[n] < tile.first;
      T score = 0, slope = 0;
      for (int64_t c = lane; c < d && !hidden; c += kWarp) {
        score += k[c] * in.q[lanes.row[n] * d + c];
        slope += v[c] * in.dy[lanes.row[n] * d + c];
      }
      score = warp_sum(score);
      slope = warp_sum(slope);
      differentiate(score, slope, hidden, lanes.shift[n], lanes.mean[n], in.scale);
      if (lane == 0) weights[n] = score, slopes[n] = slope;
    }
    __syncthreads();
    for (int64_t c = threadIdx.x; c < d; c += blockDim.x) {
      for (int n = 0; n < kThreadsOfWide; ++n) {
        if (lanes.ordinal[n] < tile.first) continue;
        dk[c] += slopes[n] * in.q[lanes.row[n] * d + c];
        dv[c] += weights[n] * in.dy[lanes.row[n] * d + c];
      }
    }
  }
  T *all_dk = tile.first_sums(to, at, to.dk, to.dk_parts),
    *all_dv = tile.first_sums(to, at, to.dv, to.dv_parts);
  for (int64_t c = threadIdx.x; c < d; c += blockDim.x) {
    if (all_dk) all_dk[c] = dk[c];
    if (all_dv) all_dv[c] = dv[c];
  }
}

template <class T>
class Backward {
 public:
  Backward(const BlockMask& mask, const BlockCall& call, const BackwardOperands<T>& in,
           const Tensor& q, const Tensor& k, Dtype given)
      : mask_(mask),
        call_(call),
        in_(in),
        given_(given),
        rows_(q.dim(0) * q.dim(1) * q.dim(2)),
        groups_(k.dim(0) * k.dim(1)),
        keys_(k.dim(2)),
        d_(q.dim(3)),
        device_(q.device()),
        packed_(packed_rows<T>(d_, in.q, in.k, in.v, in.dy)) {}

  void queries(const Tensor& dq) const {
    if (!dq.defined() || rows_ == 0) return;
    const bool fits =
        dispatch_layout<T, BackwardPlain<T>::template Tile>(d_, given_, [&]<class Layout>() {
          const size_t shared = bytes<Layout>(sizeof(ListKeys<Layout::rows>));
          if (shared > max_shared()) return false;
          const BlockSizes at = call_.sizes(Layout::rows, packed_);
          launch_each(kName, rows_ * kWarp, inner_products_kernel<Layout>, in_, at, rows_);
          launch(kName, queries_kernel<Layout>, at.grid(), dim3(Layout::threads), shared,
                 dq.data<T>(), in_, at);
          return true;
        });
    if (fits) return;
    const BlockSizes at = call_.sizes(1, packed_);
    launch_each(kName, rows_ * kWarp, inner_products_kernel<PlainTile<T, 32, 4>>, in_, at, rows_);
    launch(kName, queries_wide_kernel<T>, at.grid(), dim3(kThreadsOfWide),
           size_t(3 * d_) * sizeof(T), dq.data<T>(), in_, at);
  }

  void keys(const Tensor& dk, const Tensor& dv) const {
    if (!dk.defined() && !dv.defined()) return;
    const BlockLists lists(kName, mask_, groups_, keys_);
    KeySums<T> to = lists.sums<T>(dk, dv);
    const bool fits =
        dispatch_layout<T, BackwardPlain<T>::template Tile>(d_, given_, [&]<class Layout>() {
          const size_t shared = bytes<Layout>(sizeof(Lanes<T, Layout::rows>));
          if (shared > max_shared()) return false;
          const BlockSizes at = call_.sizes(Layout::rows, packed_);
          launch_each(kName, rows_ * kWarp, inner_products_kernel<Layout>, in_, at, rows_);
          to.span = int(std::min<int64_t>(mask_.block, Layout::rows));
          in_batches(kName, to, at, device_, [&](const KeySums<T>& of_batch, dim3 thread_blocks) {
            launch(kName, keys_kernel<Layout>, thread_blocks, dim3(Layout::threads), shared,
                   of_batch, in_, at);
          });
          return true;
        });
    if (fits) return;
    const BlockSizes at = call_.sizes(1, packed_);
    launch_each(kName, rows_ * kWarp, inner_products_kernel<PlainTile<T, 32, 4>>, in_, at, rows_);
    in_batches(kName, to, at, device_, [&](const KeySums<T>& of_batch, dim3 thread_blocks) {
      launch(kName, keys_wide_kernel<T>, thread_blocks, dim3(kThreadsOfWide),
             size_t(4 * d_) * sizeof(T), of_batch, in_, at);
    });
  }

 private:
  template <class Layout>
  static size_t bytes(size_t more) {
    return (4 * Layout::rows * Layout::step + Layout::weights) * sizeof(T) + more;
  }

  const BlockMask& mask_;
  const BlockCall& call_;
  BackwardOperands<T> in_;
  Dtype given_;
  int64_t rows_, groups_, keys_, d_;
  Device device_;
  bool packed_;
};

}  // namespace

void block_attention_backward(Tensor dq, Tensor dk, Tensor dv, Tensor dy, Tensor q, Tensor k,
                              Tensor v, Tensor y, Tensor lse, BlockMask mask, Visibility visible,
                              double scale) {
  if (k.numel() == 0) return;
  const Dtype given = q.dtype();
  if (has_16_bits(given) && tensor_cores(given) &&
      block_attention_backward_half(dq, dk, dv, dy, q, k, v, y, lse, mask,
                                    BlockCall(mask, visible, q, k), scale)) {
    return;
  }
  if (has_16_bits(given)) q = q.to(Dtype::f32), k = k.to(Dtype::f32), v = v.to(Dtype::f32);
  const BlockCall call(mask, visible, q, k);
  const Tensor dot = Tensor::like(lse);
  dispatch_float(q.dtype(), [&]<class T>() {
    const BackwardOperands<T> in{.q = q.data<T>(),
                                 .dy = dy.data<T>(),
                                 .k = k.data<T>(),
                                 .v = v.data<T>(),
                                 .lse = lse.data<T>(),
                                 .y = y.data<T>(),
                                 .dot = dot.data<T>(),
                                 .scale = T(scale)};
    const Backward<T> pass(mask, call, in, q, k, given);
    pass.queries(dq);
    pass.keys(dk, dv);
  });
}

}  // namespace brine::cuda
