// Attention to each query's k keys with the largest estimated scores, of which the exact ones are
// computed then. The estimate is the product of rank-r projections, (q P W_q) (k P W_k)^T, with a
// fixed sparse matrix P of signs and small learned matrices W, which start at the identity and
// learn the squared error to q k^T (Liu et al. 2021, "Transformer Acceleration with Dynamic Sparse
// Attention"). Time O(T^2 r), memory O(T k) and a tile of scores.
#include <cmath>
#include <optional>

#include "nn/attention/chosen_keys.h"
#include "nn/attention/rivals/row_tiles.h"
#include "tensor/meter/cost_meter.h"

namespace brine::nn {
namespace {

struct TdsaConfig {
  int64_t k = 64, rank = 16;
  double loss_weight = 1;

  void describe(data::Schema& s) {
    s.field("k", k, "Keys with the largest estimated scores that a query sees", {.min = 1});
    s.field("rank", rank, "Size of the projected queries and keys", {.min = 1});
    s.field("loss_weight", loss_weight, "Weight of the estimate's loss while the model is trained",
            {.min = 0});
  }
};

// P [d, r]: sqrt(3 / r) times -1, 0, 1 with the probabilities 1/6, 2/3, 1/6, so that the mean of
// P P^T is the identity (Achlioptas 2001).
Tensor sparse_signs(Init& init, int64_t d, int64_t r) {
  const RandomSlice slice = init.random.take(uint64_t(d * r));
  return Tensor::computed({d, r}, init.dtype, init.device, [&](int64_t i) {
    const double u = 6 * slice.uniform(uint64_t(i)), size = std::sqrt(3 / double(r));
    return u < 1 ? -size : u < 2 ? size : 0;
  });
}

// The identity for each of n heads, [n, r, r].
Tensor identities(const Init& init, int64_t n, int64_t r) {
  return Tensor::computed({n, r, r}, init.dtype, init.device,
                          [&](int64_t i) { return i / r % r == i % r; });
}

class Tdsa : public CachedAttention {
 public:
  Tdsa(Init& init, const AttentionShape& shape, const TdsaConfig& config)
      : CachedAttention(shape),
        config_(config),
        projection_(buffer("projection", sparse_signs(init, shape.head_size, config.rank))),
        query_(parameter("query", identities(init, shape.heads, config.rank))),
        key_(parameter("key", identities(init, shape.groups(), config.rank))) {}

  Tensor forward(const AttentionInput& in) override {
    std::optional<CostScope> part(std::in_place, "mask");
    const FlatCsr mask = choose(in);
    Tensor loss;
    if (learns_selection(in)) loss = estimate_loss(in);
    part.reset();
    return with_selection_loss(in, attend_on(in, mask), loss, config_.loss_weight);
  }

  std::unique_ptr<AttentionState> make_state(const StateRequest& r) const override {
    return std::make_unique<FeatureState>(r, shape_, "projected_keys", shape_.groups(),
                                          config_.rank);
  }

  Tensor step(const AttentionInput& in, AttentionState& any) const override {
    NoGrad off;
    auto& state = dynamic_cast<FeatureState&>(any);
    const Tensor at = state.lengths().clone();
    state.append(in.k, in.v);
    return attend_cached(in, state, [&](int64_t b, const AttentionInput& one) {
      const Tensor keys = one_sequence(state.features, b);
      append_row(keys, projected(one_sequence(in.k, b), key_), one_sequence(at, b));
      return largest_cached_keys(projected(one.q, query_), keys, in.options.kept(config_.k),
                                 state.length(b));
    });
  }

 private:
  // x P W of one sequence: [1, H, n, d] -> [1, H, n, r].
  Tensor projected(const Tensor& x, const Tensor& w) const {
    const int64_t H = x.dim(1), n = x.dim(2);
    const Tensor y = matmul(x.contiguous().view({H * n, x.dim(3)}), projection_.value);
    return project_heads(reshape(y, {1, H, n, config_.rank}), w);
  }

  // Of all sequences.
  Tensor all_projected(const Tensor& x, const Tensor& w) const {
    std::vector<Tensor> parts;
    for (int64_t b = 0; b < x.dim(0); ++b) parts.push_back(projected(one_sequence(x, b), w));
    return parts.size() == 1 ? parts[0] : concat(parts, 0);
  }

  FlatCsr choose(const AttentionInput& in) const {
    NoGrad off;
    const Tensor k = all_projected(in.k, key_);
    if (in.state) dynamic_cast<FeatureState&>(*in.state).fill(in, k);
    return largest_keys(all_projected(in.q, query_), k, in.options.kept(config_.k), in.visible);
  }

  // Mean over all heads and pairs of a row and a key that it sees of the squared error of the
  // estimate, both scores scaled as in the softmax.
  Tensor estimate_loss(const AttentionInput& in) const {
    const int64_t B = in.q.dim(0), H = in.q.dim(1), T = in.q.dim(2);
    const Tensor q = in.q.detach(), k = in.k.detach();
    const bool causal = in.visible.causal;
    const Tensor total =
        sum_over_tiles(row_tiles(in.visible, B, T, H), {}, [=, this](const RowTile& tile, auto&) {
          const Tensor rows = rows_of(q, tile), keys = keys_of(k, tile);
          const Tensor estimate =
              group_matmul(projected(rows, query_), projected(keys, key_), true);
          const Tensor error = sub(estimate, group_matmul(rows, keys, true));
          const Tensor seen = seen_keys(tile, causal, q.device());
          return sum(where(seen, mul(error, error), 0));
        });
    const double pairs = double(budgeted_entries(in.visible, T, B, H, T));
    return scale(total, 1 / std::max(1.0, pairs * double(shape_.head_size)));
  }

  TdsaConfig config_;
  Buffer& projection_;       // P [d, r]
  Parameter &query_, &key_;  // W_q [H, r, r], W_k [G, r, r]
};
const RegisterAttention<Tdsa, TdsaConfig> registration("tdsa");

}  // namespace
}  // namespace brine::nn
