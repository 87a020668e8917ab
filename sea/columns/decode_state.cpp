// Making the decoding state, and filling it from a pass over prompts.
#include "sea/columns/decode_state.h"

#include <algorithm>

#include "autograd/ops.h"

namespace brine::sea {

SeaState::SeaState(const Estimator& estimator, const nn::AttentionShape& shape,
                   const nn::StateRequest& r)
    : KeyValueState(r, shape),
      query_skip(r.options.query_skip),
      value_sums(part("value_sums", {r.batch, shape.groups(), shape.head_size}, Dtype::f64)),
      scores(part("scores", {r.batch, shape.heads, 1, estimator.config().columns}, r.dtype)) {
  check(query_skip >= 1, "sea: query_skip is ", query_skip, ", must be at least 1");
  estimator.make_state(*this, r);
}

void SeaState::fill(int64_t first, const LayerTokens& x, const Visibility& visible,
                    const Estimate& e, const Estimator& estimator) {
  KeyValueState::fill(first, x.k, x.v, visible.lengths);
  const int64_t B = x.k.dim(0), G = x.k.dim(1), T = x.k.dim(2), d = x.k.dim(3);
  estimator.fill(*this, {.first = first, .x = x, .visible = visible, .e = e});
  copy_into(value_sums.slice(0, first, B),
            sum_units(x.v, lengths().slice(0, first, B),
                      Tensor::full({B}, double(std::max<int64_t>(T, 1)), Dtype::i64), 1, Dtype::f64)
                .view({B, G, d}));
  // Rows that later tokens repeat; with query_skip 1 none does, and the scores may be left out.
  for (int64_t b = 0; b < B && e.scores.defined(); ++b) {
    copy_into(scores.slice(0, first + b, 1),
              e.scores.detach().slice(0, b, 1).slice(2, length(first + b) - 1, 1));
  }
}

std::string places_of_borders(const SeaConfig& config) {
  return config.prior_units ? join("_of_units_", config.prior_units) : "";
}

}  // namespace brine::sea
