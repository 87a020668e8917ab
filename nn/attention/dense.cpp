// Dense softmax attention: softmax(q k^T / sqrt(d)) v, exact and quadratic in T.
#include <cmath>

#include "autograd/ops.h"
#include "nn/attention.h"

namespace brine::nn {
namespace {

class Dense : public Attention {
 public:
  Dense(Init&, const AttentionShape&, const NoSettings&) {}

  AttentionTraits traits() const override { return {}; }

  Tensor forward(const AttentionInput& in) override {
    Tensor scores = matmul(in.q, in.k, false, true);  // [B, H, T, T]
    Tensor probs = softmax(scores, 1 / std::sqrt(double(in.q.dim(-1))), in.see);
    if (in.tap) in.tap->put("probabilities", probs);
    return merge_heads(matmul(probs, in.v));
  }
};
const RegisterAttention<Dense, NoSettings> registration("dense");

}  // namespace
}  // namespace brine::nn
