// The entries of a mask with the largest scores: a warp for every head and row. The selection
// algorithm is in tensor/kernels/select.h.
#include "tensor/base/stored.h"
#include "tensor/cuda/attention/row_sizes.cuh"
#include "tensor/cuda/core/row_strip.cuh"
#include "tensor/kernels/attention.h"
#include "tensor/kernels/select.h"

namespace brine::cuda {
namespace {

constexpr int kRefineWarps = kThreads / kWarp;

// offsets of row r of all sequences, with at most `keys` entries of each head; a thread for each.
__global__ void count_refined_kernel(int32_t* to, const int32_t* from, int64_t H, int64_t keys,
                                     int64_t rows) {
  const int64_t r = piece();
  if (r >= rows) return;
  to += r * (H + 1);
  from += r * (H + 1);
  int32_t sum = 0;
  to[0] = 0;
  for (int64_t h = 0; h < H; ++h) {
    const int32_t n = from[h + 1] - from[h];
    sum += n < keys ? n : int32_t(keys);
    to[h + 1] = sum;
  }
}

template <class T, class S>
struct Refinement {
  int32_t* columns;
  OrderKey<T>* scratch;  // by entry of the candidates
  const T* q;
  const S* k;
  MaskRows candidates, fine;
  int64_t pieces, d, group, keys;  // group = heads that share keys
};

template <int D, bool Whole, class T, class S>
__global__ void __launch_bounds__(kThreads, kStripBlocks<T>) refine_kernel(Refinement<T, S> a) {
  const int64_t r = piece() / kWarp;
  if (r >= a.pieces) return;
  const RowEntries at = a.candidates(r);
  int32_t* out = a.columns + a.fine(r).first;
  if (at.count <= a.keys) {
    for (int64_t e = int64_t(threadIdx.x) % kWarp; e < at.count; e += kWarp) out[e] = at.columns[e];
    return;
  }
  OrderKey<T>* order_keys = a.scratch + at.first;
  const S* keys = a.k + r / (a.candidates.T * a.group) * a.candidates.S * a.d;
  each_product<D, Whole>(at, a.q + r * (Whole ? D : a.d), keys, a.d,
                         [&](int64_t e, T product) { order_keys[e] = order_key(product); });
  const WarpGroup warp;
  warp.sync();
  each_largest(warp, order_keys, at.count, a.keys,
               [&](int64_t rank, int64_t e) { out[rank] = at.columns[e]; });
}

}  // namespace

void count_refined(FlatCsr fine, FlatCsr csr, int64_t keys) {
  const int64_t rows = csr.batch * csr.length;
  launch_each("count_refined", rows, count_refined_kernel, fine.head_offsets.data<int32_t>(),
              csr.head_offsets.data<int32_t>(), csr.heads, keys, rows);
  sum_row_sizes("count_refined", fine);
}

void refine(FlatCsr fine, Tensor q, Tensor k, FlatCsr csr, int64_t keys) {
  const int64_t d = q.dim(3), pieces = csr.batch * csr.heads * csr.length;
  if (pieces == 0 || csr.entries() == 0) return;
  dispatch_stored(q.dtype(), k.dtype(), [&]<class T, class S>() {
    const Tensor scratch = Tensor::empty({csr.entries()}, q.dtype(), q.device());
    const Refinement<T, S> a{fine.columns.data<int32_t>(),
                             reinterpret_cast<OrderKey<T>*>(scratch.data<T>()),
                             q.data<T>(),
                             k.data<S>(),
                             MaskRows(csr),
                             MaskRows(fine),
                             pieces,
                             d,
                             q.dim(1) / k.dim(1),
                             keys};
    dispatch_strip(
        d,
        [&]<int D, bool Whole>() {
          launch("refine", refine_kernel<D, Whole, T, S>, dim3(blocks_for(pieces, kRefineWarps)),
                 dim3(kThreads), 0, a);
        },
        q, k);
  });
}

}  // namespace brine::cuda
