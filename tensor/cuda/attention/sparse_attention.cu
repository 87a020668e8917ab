// Attention on the entries of a flat CSR mask: scores, softmax and the product with V by one warp
// for every head and row. The rows of one head are consecutive, so its K and V stay in the cache.
#include "tensor/base/stored.h"
#include "tensor/cuda/core/row_strip.cuh"
#include "tensor/kernels/attention.h"

namespace brine::cuda {
namespace {

// The warps of a block process neighbouring rows: these mostly keep the same keys, whose K and V
// are then loaded once into L1. More warps would leave registers unused.
constexpr int kRowWarps = 8;

template <class T, class S>
struct Forward {
  T *y, *p;
  const T* q;
  const S *k, *v;
  MaskRows rows;
  int64_t pieces, d, group;  // group = heads that share keys and values
  T scale;

  // Where the keys of row r begin, in k and in v.
  __device__ int64_t keys_of(int64_t r) const { return r / (rows.T * group) * rows.S * d; }
};

// p = scale q k over the entries of row r; returns the largest.
template <int D, bool Whole, class T, class S>
__device__ T score(const Forward<T, S>& a, const RowEntries& at, int64_t r) {
  const S* keys = a.k + a.keys_of(r);
  T max_score = -INFINITY;
  each_product<D, Whole>(at, a.q + r * (Whole ? D : a.d), keys, a.d, [&](int64_t e, T product) {
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
  if (r >= a.pieces) return;
  const RowEntries at = a.rows(r);
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
  const S* values = a.v + a.keys_of(r);
  Strip<T, S, D, Whole> strip{a.d};
  for (; strip.first < strip.width(); strip.first += D) {
    T sums[Strip<T, S, D, Whole>::kSize] = {};
    for (int64_t e = 0; e < at.count; e += kWarp) {
      const int count = int(at.count - e < kWarp ? at.count - e : kWarp);
      const auto key = int32_t(lane < count ? at.columns[e + lane] - at.base : 0);
      const T weight = lane < count ? p[e + lane] : T(0);
      strip.add(sums, values, key, weight, count);
    }
    strip.join(sums);
#pragma unroll
    for (T& sum : sums) sum *= share;
    strip.store(a.y + r * strip.width(), sums);
  }
  for (int64_t e = lane; e < at.count; e += kWarp) p[e] *= share;
}

}  // namespace

void sparse_attention(Tensor y, Tensor p, Tensor q, Tensor k, Tensor v, FlatCsr csr, double scale) {
  const int64_t d = q.dim(3), pieces = csr.batch * csr.heads * csr.length;
  const int64_t group = q.dim(1) / k.dim(1);
  if (y.numel() == 0) return;
  dispatch_stored(q.dtype(), k.dtype(), [&]<class T, class S>() {
    Forward<T, S> a{y.data<T>(),   p.data<T>(), q.data<T>(), k.data<S>(), v.data<S>(),
                    MaskRows(csr), pieces,      d,           group,       T(scale)};
    dispatch_strip(
        d,
        [&]<int D, bool Whole>() {
          launch("sparse_attention", forward_kernel<D, Whole, T, S>,
                 dim3(blocks_for(pieces, kRowWarps)), dim3(kRowWarps * kWarp), 0, a);
        },
        y, q, k, v);
  });
}

}  // namespace brine::cuda
