// Attention on the entries of a flat CSR mask and its gradients: scores, softmax and the product
// with V by one warp for every head and row. The rows of one head are consecutive, so its K and V
// stay in the cache.
#include "tensor/base/stored.h"
#include "tensor/cuda/attention/transposed_entries.cuh"
#include "tensor/cuda/core/row_strip.cuh"
#include "tensor/kernels/attention.h"

namespace brine::cuda {
namespace {

// The warps of a block process neighbouring rows: these mostly keep the same keys, whose K and V
// are then loaded once into L1. More warps would leave registers unused.
constexpr int kRowWarps = 8;

// The entries of all rows and the keys and values that they are on.
template <class S>
struct Entries {
  const S *k, *v;
  MaskRows rows;
  int64_t pieces, d, group;  // group = heads that share keys and values

  // Where the keys of row r begin, in k and in v.
  __device__ int64_t keys_of(int64_t r) const { return r / (rows.T * group) * rows.S * d; }
};

template <class T, class S>
struct Forward {
  T *y, *p;
  const T* q;
  Entries<S> of;
  T scale;
};

// y = factor sum_e weight_e x_key(e) over the entries of a row; x is of its keys. A lane reads only
// those weights that it wrote.
template <int D, bool Whole, class T, class S>
__device__ void sum_rows(T* y, const S* x, const RowEntries& at, const T* weights, T factor,
                         int64_t d) {
  const int lane = int(threadIdx.x) % kWarp;
  Strip<T, S, D, Whole> strip{d};
  for (; strip.first < strip.width(); strip.first += D) {
    T sums[Strip<T, S, D, Whole>::kSize] = {};
    for (int64_t e = 0; e < at.count; e += kWarp) {
      const int count = int(at.count - e < kWarp ? at.count - e : kWarp);
      const auto key = int32_t(lane < count ? at.columns[e + lane] - at.base : 0);
      strip.add(sums, x, key, lane < count ? weights[e + lane] : T(0), count);
    }
    strip.join(sums);
#pragma unroll
    for (T& sum : sums) sum *= factor;
    strip.store(y, sums);
  }
}

// p = scale q k over the entries of row r; returns the largest.
template <int D, bool Whole, class T, class S>
__device__ T score(const Forward<T, S>& a, const RowEntries& at, int64_t r) {
  const S* keys = a.of.k + a.of.keys_of(r);
  const int64_t d = a.of.d;
  T max_score = -INFINITY;
  each_product<D, Whole>(at, a.q + r * (Whole ? D : d), keys, d, [&](int64_t e, T product) {
    product *= a.scale;
    a.p[at.first + e] = product;
    max_score = product > max_score ? product : max_score;
  });
  return warp_max(max_score);
}

// A lane reads only those elements of p that it wrote.
template <int D, bool Whole, class T, class S>
__global__ void __launch_bounds__(kRowWarps* kWarp, kStripBlocks<T>)
    forward_kernel(Forward<T, S> a) {
  const int64_t r = piece() / kWarp;
  if (r >= a.of.pieces) return;
  const RowEntries at = a.of.rows(r);
  const int lane = int(threadIdx.x) % kWarp;
  T* p = a.p + at.first;
  const T max_score = score<D, Whole>(a, at, r);
  T sum = 0;
  for (int64_t e = lane; e < at.count; e += kWarp) {
    p[e] = math::exp(p[e] - max_score);
    sum += p[e];
  }
  sum = warp_sum(sum);
  const T share = at.count > 0 ? 1 / sum : T(0);
  sum_rows<D, Whole>(a.y + r * (Whole ? D : a.of.d), a.of.v + a.of.keys_of(r), at, p, share,
                     a.of.d);
  for (int64_t e = lane; e < at.count; e += kWarp) p[e] *= share;
}

// ---- gradients
//
// Those of Q and of the scores go over rows. Those of K and V go over keys, each of which needs its
// entries in the order of the rows, so that sums repeat bit for bit: the lists of
// transposed_entries.cuh. The rows of all heads of a group are the rows of its keys. A warp sums
// the list of one key, or a part of it that depends on its length; there are no sums in memory.

// Keys that many rows keep (one that attracts all attention, or few kept keys for many rows) have
// lists that would occupy a warp for longer than all others take.
constexpr int64_t kLongList = 4 * kRowWarps * kWarp;

template <class T, class S>
struct Rows {
  T *ds, *dq;  // dq may be null
  const T *dy, *p;
  Entries<S> of;
  T scale;
};

// ds = dp = dy . v over the entries of row r; returns sum p dp.
template <int D, bool Whole, class T, class S>
__device__ T value_products(const Rows<T, S>& a, const RowEntries& at, int64_t r) {
  const S* values = a.of.v + a.of.keys_of(r);
  T total = 0;
  each_product<D, Whole>(at, a.dy + r * a.of.d, values, a.of.d, [&](int64_t e, T product) {
    a.ds[at.first + e] = product;
    total += product * a.p[at.first + e];
  });
  return warp_sum(total);
}

// ds = p (dp - sum p dp) scale; dq = sum_e ds_e k_key(e). A lane reads only what it wrote.
template <int D, bool Whole, class T, class S>
__global__ void __launch_bounds__(kRowWarps* kWarp, kStripBlocks<T>) rows_kernel(Rows<T, S> a) {
  const int64_t r = piece() / kWarp;
  if (r >= a.of.pieces) return;
  const RowEntries at = a.of.rows(r);
  const int lane = int(threadIdx.x) % kWarp;
  T* ds = a.ds + at.first;
  const T total = value_products<D, Whole>(a, at, r);
  for (int64_t e = lane; e < at.count; e += kWarp) {
    ds[e] = a.p[at.first + e] * (ds[e] - total) * a.scale;
  }
  if (!a.dq) return;
  sum_rows<D, Whole>(a.dq + r * (Whole ? D : a.of.d), a.of.k + a.of.keys_of(r), at, ds, T(1),
                     a.of.d);
}

// y [B, G, S, d] = sum over the entries of a key of weight x_row; x [B, G, rows of a group, d].
template <class T, class S>
struct Side {
  T* y;
  const S* x;
  const T* weights;
};

struct KeyLists {
  const int64_t* starts;
  const int32_t* rows;
  int64_t keys, keys_of_group, rows_of_group, d;

  __device__ bool is_long(int64_t key) const { return starts[key + 1] - starts[key] > kLongList; }
};

// The sums over the entries begin <= e < end, which are on this key.
template <class Columns, class T, class S>
__device__ void sum_entries(T (&sums)[Columns::kSize], const Columns& strip, const Side<T, S>& side,
                            const KeyLists& lists, int64_t key, int64_t begin, int64_t end) {
  const int lane = int(threadIdx.x) % kWarp;
  const S* x = side.x + key / lists.keys_of_group * lists.rows_of_group * lists.d;
  for (int64_t e = begin; e < end; e += kWarp) {
    const int count = int(end - e < kWarp ? end - e : kWarp);
    const int32_t row = lane < count ? lists.rows[e + lane] : 0;
    strip.add(sums, x, row, lane < count ? side.weights[e + lane] : T(0), count);
  }
  strip.join(sums);
}

// One warp per key; then all warps for each of the block's long lists, every one a run of it. The
// two halves of the grid's y are dk and dv.
template <int D, bool Whole, class T, class S>
__global__ void __launch_bounds__(kRowWarps* kWarp, kStripBlocks<T>)
    keys_kernel(Side<T, S> first, Side<T, S> second, KeyLists lists) {
  using Columns = Strip<T, S, D, Whole>;
  __shared__ T parts[kRowWarps][D];
  const Side<T, S> side = blockIdx.y == 0 ? first : second;
  const int warp = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp;
  const int64_t begin_key = int64_t(blockIdx.x) * kRowWarps, warp_key = begin_key + warp;
  Columns strip{lists.d};
  for (; strip.first < strip.width(); strip.first += D) {
    if (warp_key < lists.keys && !lists.is_long(warp_key)) {
      T sums[Columns::kSize] = {};
      sum_entries(sums, strip, side, lists, warp_key, lists.starts[warp_key],
                  lists.starts[warp_key + 1]);
      strip.store(side.y + warp_key * strip.width(), sums);
    }
    for (int64_t key = begin_key; key < begin_key + kRowWarps && key < lists.keys; ++key) {
      if (!lists.is_long(key)) continue;
      const int64_t begin = lists.starts[key], end = lists.starts[key + 1];
      const int64_t share = (end - begin + kRowWarps * kWarp - 1) / (kRowWarps * kWarp) * kWarp;
      const int64_t from = begin + warp * share, upto = from + share < end ? from + share : end;
      T sums[Columns::kSize] = {};
      sum_entries(sums, strip, side, lists, key, from, upto);
#pragma unroll
      for (int i = 0; i < Columns::kSize; ++i) {
        if (lane < Columns::kLanes) parts[warp][i * Columns::kLanes + lane] = sums[i];
      }
      __syncthreads();
      if (warp == 0) {
#pragma unroll
        for (int i = 0; i < Columns::kSize; ++i) {
          sums[i] = 0;
          for (int w = 0; w < kRowWarps; ++w) {
            sums[i] += parts[w][i * Columns::kLanes + lane % Columns::kLanes];
          }
        }
        strip.store(side.y + key * strip.width(), sums);
      }
      __syncthreads();
    }
  }
}

// If q has rows of 16 bits, dy is rounded in the same way: it is gathered once per entry, so a copy
// of half the size pays for itself at the second use.
template <class T, class S>
void launch_keys(Tensor dk, Tensor dv, const Tensor& dy, const Tensor& q, const Tensor& ds,
                 const Tensor& p, const FlatCsr& csr, int64_t group) {
  const int64_t keys = csr.batch * (csr.heads / group) * csr.keys;
  const TransposedEntries lists =
      transpose_entries<T>(csr, group, dv.defined() ? p : Tensor(), dk.defined() ? ds : Tensor());
  const Tensor g = dv.defined() ? dy.to(q.dtype()) : Tensor();
  const Side<T, S> of_k{data_or_null<T>(dk), q.data<S>(), data_or_null<T>(lists.second)};
  const Side<T, S> of_v{data_or_null<T>(dv), data_or_null<S>(g), data_or_null<T>(lists.first)};
  const KeyLists by_key{lists.starts.data<int64_t>(),
                        lists.rows.data<int32_t>(),
                        keys,
                        csr.keys,
                        group * csr.length,
                        q.dim(3)};
  dispatch_strip(
      q.dim(3),
      [&]<int D, bool Whole>() {
        const bool both = dk.defined() && dv.defined();
        launch("sparse_attention_backward", keys_kernel<D, Whole, T, S>,
               dim3(blocks_for(keys, kRowWarps), both ? 2 : 1), dim3(kRowWarps * kWarp), 0,
               dk.defined() ? of_k : of_v, of_v, by_key);
      },
      dk, dv, g, q);
}

}  // namespace

void sparse_attention(Tensor y, Tensor p, Tensor q, Tensor k, Tensor v, FlatCsr csr, double scale) {
  const int64_t d = q.dim(3), pieces = csr.batch * csr.heads * csr.length;
  const int64_t group = q.dim(1) / k.dim(1);
  if (y.numel() == 0) return;
  dispatch_stored(q.dtype(), k.dtype(), [&]<class T, class S>() {
    const Entries<S> of{k.data<S>(), v.data<S>(), MaskRows(csr), pieces, d, group};
    Forward<T, S> a{y.data<T>(), p.data<T>(), q.data<T>(), of, T(scale)};
    dispatch_strip(
        d,
        [&]<int D, bool Whole>() {
          launch("sparse_attention", forward_kernel<D, Whole, T, S>,
                 dim3(blocks_for(pieces, kRowWarps)), dim3(kRowWarps * kWarp), 0, a);
        },
        y, q, k, v);
  });
}

void sparse_attention_backward(Tensor dq, Tensor dk, Tensor dv, Tensor dy, Tensor q, Tensor k,
                               Tensor v, Tensor p, FlatCsr csr, double scale) {
  const int64_t d = q.dim(3), pieces = csr.batch * csr.heads * csr.length;
  const int64_t keys = csr.batch * csr.heads * csr.keys, group = q.dim(1) / k.dim(1);
  Tensor ds = dq.defined() || dk.defined() ? Tensor::like(p) : Tensor();
  if (d == 0) return;
  dispatch_stored(dy.dtype(), q.dtype(), [&]<class T, class S>() {
    if (ds.defined() && pieces > 0) {
      const Entries<S> of{k.data<S>(), v.data<S>(), MaskRows(csr), pieces, d, group};
      Rows<T, S> a{ds.data<T>(), data_or_null<T>(dq), dy.data<T>(), p.data<T>(), of, T(scale)};
      dispatch_strip(
          d,
          [&]<int D, bool Whole>() {
            launch("sparse_attention_backward", rows_kernel<D, Whole, T, S>,
                   dim3(blocks_for(pieces, kRowWarps)), dim3(kRowWarps * kWarp), 0, a);
          },
          dq, dy, k, v);
    }
    if ((dk.defined() || dv.defined()) && keys > 0) {
      launch_keys<T, S>(dk, dv, dy, q, ds, p, csr, group);
    }
  });
}

}  // namespace brine::cuda
