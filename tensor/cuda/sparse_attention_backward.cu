// Gradients of attention on the entries of a flat CSR mask.
//
// Those of Q and of the scores go over rows. Those of K and V go over keys, each of which needs its
// entries in the order of the rows, so that sums repeat to the bit: the lists of
// transposed_entries.cuh. A warp sums up the list of one key; nothing is added up in memory.
#include "tensor/cuda/row_strip.cuh"
#include "tensor/cuda/transposed_entries.cuh"
#include "tensor/kernels_sparse.h"

namespace brine::cuda {
namespace {

constexpr int kWarps = 4;  // a block

template <class T>
struct Rows {
  T *ds, *dq;  // dq may be null
  const T *dy, *k, *v, *p;
  MaskRows rows;
  int64_t pieces, d;
  T scale;
};

// ds = dp = dy . v over the entries of row r; returns sum p dp.
template <int D, bool Whole, class T>
__device__ T value_products(const Rows<T>& a, const Entries& at, int64_t r) {
  const T* values = a.v + r / a.rows.T * a.rows.S * a.d;
  T total = 0;
  each_product<D, Whole>(at, a.dy + r * a.d, values, a.d, [&](int64_t e, T product) {
    a.ds[at.first + e] = product;
    total += product * a.p[at.first + e];
  });
  return warp_sum(total);
}

// ds = p (dp - sum p dp) scale; dq = sum_e ds_e k_key(e). A lane reads what it wrote.
template <int D, bool Whole, class T>
__global__ void __launch_bounds__(kWarps* kWarp, 4) rows_kernel(Rows<T> a) {
  const int64_t r = piece() / kWarp;
  if (r >= a.pieces) return;
  const Entries at = a.rows(r);
  const int lane = int(threadIdx.x) % kWarp;
  T* ds = a.ds + at.first;
  const T total = value_products<D, Whole>(a, at, r);
  for (int64_t e = lane; e < at.count; e += kWarp) {
    ds[e] = a.p[at.first + e] * (ds[e] - total) * a.scale;
  }
  if (!a.dq) return;
  const T* keys = a.k + r / a.rows.T * a.rows.S * a.d;
  Strip<T, D, Whole> strip{a.d};
  for (; strip.first < strip.width(); strip.first += D) {
    T sums[Strip<T, D, Whole>::kSize] = {};
    for (int64_t e = 0; e < at.count; e += kWarp) {
      const int count = int(at.count - e < kWarp ? at.count - e : kWarp);
      const int64_t key = lane < count ? at.columns[e + lane] - at.base : 0;
      strip.add(sums, keys, key, lane < count ? ds[e + lane] : T(0), count);
    }
    strip.store(a.dq + r * strip.width(), sums, T(1));
  }
}

// y [B, H, S, d] = sum over the entries of a key of weight x_row. A warp a key; the two halves of
// the grid's y are dk and dv.
template <class T>
struct Side {
  T* y;
  const T *x, *weights;
};

template <int D, bool Whole, class T>
__global__ void __launch_bounds__(kWarps* kWarp)
    keys_kernel(Side<T> first, Side<T> second, const int64_t* starts, const int32_t* list_rows,
                int64_t keys, int64_t S, int64_t rows, int64_t d) {
  const int64_t i = piece() / kWarp;
  if (i >= keys) return;
  const Side<T> side = blockIdx.y == 0 ? first : second;
  const int lane = int(threadIdx.x) % kWarp;
  const int64_t begin = starts[i], end = starts[i + 1];
  const T* x = side.x + i / S * rows * d;
  Strip<T, D, Whole> strip{d};
  for (; strip.first < strip.width(); strip.first += D) {
    T sums[Strip<T, D, Whole>::kSize] = {};
    for (int64_t e = begin; e < end; e += kWarp) {
      const int count = int(end - e < kWarp ? end - e : kWarp);
      const int64_t row = lane < count ? list_rows[e + lane] : 0;
      strip.add(sums, x, row, lane < count ? side.weights[e + lane] : T(0), count);
    }
    strip.store(side.y + i * strip.width(), sums, T(1));
  }
}

template <class T>
T* data_or_null(const Tensor& t) {
  return t.defined() ? t.data<T>() : nullptr;
}

template <class T>
void launch_keys(Tensor dk, Tensor dv, const Tensor& dy, const Tensor& q, const Tensor& ds,
                 const Tensor& p, const FlatCsr& csr) {
  const int64_t d = q.dim(3), keys = csr.batch * csr.heads * csr.keys;
  const TransposedEntries lists =
      transpose_entries<T>(csr, dv.defined() ? p : Tensor(), dk.defined() ? ds : Tensor());
  const Side<T> of_k{data_or_null<T>(dk), q.data<T>(), data_or_null<T>(lists.second)};
  const Side<T> of_v{data_or_null<T>(dv), dy.data<T>(), data_or_null<T>(lists.first)};
  dispatch_strip<T>(
      d,
      [&]<int D, bool Whole>() {
        const bool both = dk.defined() && dv.defined();
        launch("sparse_attention_backward", keys_kernel<D, Whole, T>,
               dim3(blocks_for(keys, kWarps), both ? 2 : 1), dim3(kWarps * kWarp), 0,
               dk.defined() ? of_k : of_v, of_v, lists.starts.template data<int64_t>(),
               lists.rows.template data<int32_t>(), keys, csr.keys, csr.length, d);
      },
      dk, dv, dy, q);
}

}  // namespace

void sparse_attention_backward(Tensor dq, Tensor dk, Tensor dv, Tensor dy, Tensor q, Tensor k,
                               Tensor v, Tensor p, FlatCsr csr, double scale) {
  const int64_t d = q.dim(3), pieces = csr.batch * csr.heads * csr.length;
  const int64_t keys = csr.batch * csr.heads * csr.keys;
  Tensor ds = dq.defined() || dk.defined() ? Tensor::like(p) : Tensor();
  if (d == 0) return;
  dispatch_float(q.dtype(), [&]<class T>() {
    if (ds.defined() && pieces > 0) {
      Rows<T> a{ds.data<T>(), data_or_null<T>(dq), dy.data<T>(), k.data<T>(), v.data<T>(),
                p.data<T>(),  MaskRows(csr),       pieces,       d,           T(scale)};
      dispatch_strip<T>(
          d,
          [&]<int D, bool Whole>() {
            launch("sparse_attention_backward", rows_kernel<D, Whole, T>,
                   dim3(blocks_for(pieces, kWarps)), dim3(kWarps * kWarp), 0, a);
          },
          dq, dy, k, v);
    }
    if ((dk.defined() || dv.defined()) && keys > 0) launch_keys<T>(dk, dv, dy, q, ds, p, csr);
  });
}

}  // namespace brine::cuda
