// Attention to the k most recent keys (a sliding window; of an encoder, the k nearest keys), exact
// on them: the floor that a selection of keys must beat. Linear in T.
#include <algorithm>
#include <cmath>

#include "autograd/ops.h"
#include "autograd/ops_sparse.h"
#include "nn/attention.h"
#include "tensor/cost_meter.h"

namespace brine::nn {
namespace {

struct RecentConfig {
  int64_t k = 64;

  void describe(Schema& s) {
    s.field("k", k, "Most recent (encoder: nearest) keys that a query sees", {.min = 1});
  }
};

// The last min(k, w) visible keys of every row, or as many around it; the same for all heads.
FlatCsr recent_keys(int64_t B, int64_t H, int64_t T, int64_t k, const Visibility& see) {
  RowWidths widths(see, T);
  FlatCsr csr{.row_pointers = Tensor::empty({B, T + 1}, Dtype::i64),
              .head_offsets = Tensor::empty({B, T, H + 1}, Dtype::i32),
              .columns = {},
              .batch = B,
              .heads = H,
              .length = T,
              .keys = T};
  int64_t entries = 0;
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t t = 0; t <= T; ++t) {
      csr.row_pointers.data<int64_t>()[b * (T + 1) + t] = entries;
      if (t == T) break;
      int64_t n = std::min(k, widths(b, t));
      for (int64_t h = 0; h <= H; ++h) {
        csr.head_offsets.data<int32_t>()[(b * T + t) * (H + 1) + h] = int32_t(h * n);
      }
      entries += H * n;
    }
  }
  csr.columns = Tensor::empty({entries}, Dtype::i32);
  int32_t* column = csr.columns.data<int32_t>();
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t t = 0; t < T; ++t) {
      int64_t w = widths(b, t), n = std::min(k, w);
      int64_t first = see.causal ? w - n : std::clamp<int64_t>(t - n / 2, 0, w - n);
      for (int64_t h = 0; h < H; ++h) {
        for (int64_t key = first; key < first + n; ++key) *column++ = int32_t(h * T + key);
      }
    }
  }
  return csr;
}

class Recent : public Attention {
 public:
  Recent(Init&, const AttentionShape& shape, const RecentConfig& config)
      : k_(config.k), shape_(shape) {}

  AttentionTraits traits() const override {
    return {
        .causal = shape_.causal, .bidirectional = !shape_.causal, .linear = true, .sparse = true};
  }

  bool add_cost(CostTable& costs, int64_t tokens, const AttentionDials& dials) const override {
    const double T = double(tokens), H = double(shape_.heads), d = double(shape_.head_size);
    const double k = double(std::min(dials.k ? dials.k : k_, tokens));
    const double entries = H * (shape_.causal ? k * (k + 1) / 2 + (T - k) * k : T * k);
    costs.op("attention", 2 * entries * d, {H * T * d, H * T * d, H * T * d, H * T * d});
    costs.op("attention", 0, {H * T * d, H * T * d});
    return true;
  }

  Tensor forward(const AttentionInput& in) override {
    int64_t B = in.q.dim(0), H = in.q.dim(1), T = in.q.dim(2);
    int64_t k = in.dials.k ? in.dials.k : k_;
    CostScope part("attention");
    FlatCsr csr = recent_keys(B, H, T, k, in.see);
    Tensor c = in.dials.dense_path
                   ? matmul(masked_softmax(matmul(in.q, in.k, false, true), csr_to_mask(csr),
                                           1 / std::sqrt(double(in.q.dim(-1)))),
                            in.v)
                   : sparse_attention(in.q, in.k, in.v, csr);
    return merge_heads(c);
  }

 private:
  int64_t k_;
  AttentionShape shape_;
};
const RegisterAttention<Recent, RecentConfig> registration("recent");

}  // namespace
}  // namespace brine::nn
