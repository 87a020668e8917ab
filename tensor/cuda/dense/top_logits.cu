// The largest logits of every row: a block finds the threshold by counting digits of
// order-preserving integers, collects the values above it, and sorts them by counting predecessors.
#include "tensor/cuda/core/block_group.cuh"
#include "tensor/kernels/dense.h"
#include "tensor/kernels/select.h"

namespace brine::cuda {
namespace {

constexpr int kLogitDigits = 256;

struct Border {
  uint32_t key;   // the n-th largest
  int64_t equal;  // how many keys equal to it are among the n largest
};

// All threads of the block call.
__device__ Border find_border(const BlockGroup& group, const float* x, int64_t V, int64_t n) {
  __shared__ unsigned counts[kLogitDigits];
  Border border{0, n};
  for (int shift = 24; shift >= 0; shift -= 8) {
    group.each(kLogitDigits, [&](int64_t i) { counts[i] = 0; });
    group.each(V, [&](int64_t i) {
      const uint32_t key = order_key(x[i]);
      // Of the keys with the digits found so far; initially all.
      if (shift == 24 || (key ^ border.key) >> (shift + 8) == 0) {
        atomicAdd(&counts[key >> shift & (kLogitDigits - 1)], 1u);
      }
    });
    uint32_t digit = kLogitDigits - 1;
    for (; digit > 0 && border.equal > counts[digit]; --digit) border.equal -= counts[digit];
    border.key |= digit << shift;
    group.sync();  // the counts have been read
  }
  return border;
}

// kept, kept_ids: scratch of the sizes of values and ids.
__global__ void top_kernel(float* values, int32_t* ids, float* kept, int32_t* kept_ids,
                           const float* x, int64_t V, int64_t n) {
  const BlockGroup group;
  const int64_t r = blockIdx.x;
  x += r * V;
  for (float** p : {&values, &kept}) *p += r * n;
  for (int32_t** p : {&ids, &kept_ids}) *p += r * n;
  const Border border = find_border(group, x, V, n);
  const int64_t above = n - border.equal;
  auto keep = [&](int64_t slot, int64_t i) {
    kept[slot] = x[i];
    kept_ids[slot] = int32_t(i);
  };
  group.scan(
      V, [&](int64_t i) { return order_key(x[i]) > border.key; },
      [&](int64_t i, bool flagged, int64_t before) {
        if (flagged) keep(before, i);
      });
  group.scan(
      V, [&](int64_t i) { return order_key(x[i]) == border.key; },
      [&](int64_t i, bool flagged, int64_t before) {
        if (flagged && before < border.equal) keep(above + before, i);
      });
  group.each(n, [&](int64_t i) {
    const uint32_t key = order_key(kept[i]);
    int64_t rank = 0;
    // Equal ones were collected in the order of their ids.
    for (int64_t j = 0; j < n; ++j) {
      const uint32_t other = order_key(kept[j]);
      rank += other > key || (other == key && j < i);
    }
    values[rank] = kept[i];
    ids[rank] = kept_ids[i];
  });
}

}  // namespace

void top_logits(Tensor values, Tensor ids, Tensor lse, Tensor x) {
  const int64_t R = x.rows();
  if (R == 0) return;
  log_sum_exp(lse, x);
  const Tensor kept = Tensor::like(values), kept_ids = Tensor::like(ids);
  launch("top_logits", top_kernel, dim3(blocks_for(R, 1)), dim3(kThreads), 0, values.data<float>(),
         ids.data<int32_t>(), kept.data<float>(), kept_ids.data<int32_t>(),
         static_cast<const float*>(x.data<float>()), x.dim(-1), values.dim(-1));
}

}  // namespace brine::cuda
