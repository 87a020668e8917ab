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

void SeaState::fill(const Prompts& prompts, const Estimator& estimator) {
  const int64_t first = prompts.first;
  KeyValueState::fill(first, prompts.x.k, prompts.x.v, prompts.visible.lengths);
  estimator.fill(*this, prompts);
  sum_values(first, prompts.x.v);
  // Rows that later tokens repeat; with query_skip 1 none does, and the scores may be left out.
  const Tensor& of_rows = prompts.e.scores;
  for (int64_t b = 0; of_rows.defined() && b < of_rows.dim(0); ++b) {
    copy_into(scores.slice(0, first + b, 1),
              of_rows.detach().slice(0, b, 1).slice(2, length(first + b) - 1, 1));
  }
}

void SeaState::extend(const Prompts& part, const Estimator& estimator) {
  estimator.fill(*this, part);
  sum_values(part.first, rows(part.first, part.x.v.dtype()).second.slice(2, 0, length(part.first)));
}

void SeaState::sum_values(int64_t first, const Tensor& v) {
  const int64_t B = v.dim(0), T = std::max<int64_t>(v.dim(2), 1);
  copy_into(value_sums.slice(0, first, B),
            sum_units(v, lengths().slice(0, first, B), Tensor::full({B}, double(T), Dtype::i64), 1,
                      Dtype::f64)
                .view({B, v.dim(1), v.dim(3)}));
}

std::string suffix_of_borders(const SeaConfig& config) {
  return config.prior_units ? join("_of_units_", config.prior_units) : "";
}

}  // namespace brine::sea
