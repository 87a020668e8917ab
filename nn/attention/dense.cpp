// Dense softmax attention: softmax(q k^T / sqrt(d)) v with its T x T map, for inspection and as the
// reference of flash.cpp.
#include <cmath>

#include "nn/attention/cached.h"
#include "tensor/meter/cost_meter.h"

namespace brine::nn {
namespace {

class Dense : public CachedAttention {
 public:
  Dense(Init&, const AttentionShape& shape, const NoSettings&) : CachedAttention(shape) {}

  AttentionTraits traits() const override {
    return {.maps = true, .incremental = shape_.causal, .groups = true};
  }

  Tensor forward(const AttentionInput& in) override {
    fill(in);
    CostScope part("attention");
    Tensor scores = on_groups(in.q, in.k, true);  // [B, H, T, T]
    Tensor probs = softmax(scores, 1 / std::sqrt(double(in.q.dim(-1))), in.visible);
    if (in.tap) in.tap->put("probabilities", probs);
    return merge_heads(on_groups(probs, in.v, false));
  }

 private:
  // x [B, H, T, n] times the keys or values [B, G, T, d] of each head's group. The rows of a
  // group's heads are neighbours, so they are the rows of one product and nothing is copied.
  Tensor on_groups(const Tensor& x, const Tensor& kv, bool transposed) const {
    if (shape_.heads_per_group() == 1) return matmul(x, kv, false, transposed);
    const int64_t B = x.dim(0), H = x.dim(1), T = x.dim(2);
    const Tensor rows = reshape(x, {B, shape_.groups(), H / shape_.groups() * T, x.dim(3)});
    const Tensor y = matmul(rows, kv, false, transposed);
    return reshape(y, {B, H, T, y.dim(3)});
  }
};
const RegisterAttention<Dense, NoSettings> registration("dense");

}  // namespace
}  // namespace brine::nn
