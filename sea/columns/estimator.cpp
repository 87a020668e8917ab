// The order in which the stages of an estimator run.
#include "sea/columns/estimator.h"

#include "autograd/ops.h"
#include "sea/columns/decode_state.h"
#include "tensor/meter/cost_meter.h"

namespace brine::sea {

void Estimator::check_input(const LayerTokens& x, const Visibility& visible,
                            int64_t query_skip) const {
  check(visible.causal == shape_.causal, "sea: a model that is ", shape_.causal ? "" : "not ",
        "causal was given a mask that is ", visible.causal ? "" : "not ", "causal");
  check(query_skip >= 1, "sea: query_skip is ", query_skip, ", must be at least 1");
  const Tensor &q = x.q, &k = x.k;
  check(q.rank() == 4 && q.dim(1) == shape_.heads && q.dim(3) == shape_.head_size && q.dim(2) > 0 &&
            k.shape() == Shape{q.dim(0), shape_.groups(), q.dim(2), q.dim(3)} &&
            x.v.shape() == k.shape(),
        "sea: q must be [B, ", shape_.heads, ", T, ", shape_.head_size, "], k and v [B, ",
        shape_.groups(), ", T, ", shape_.head_size, "], got ", q.shape(), ", ", k.shape(), ", ",
        x.v.shape());
}

Estimate Estimator::operator()(const LayerTokens& x, const Visibility& visible, int64_t query_skip,
                               Wanted wanted) const {
  check_input(x, visible, query_skip);
  const Pass pass{.x = x, .visible = visible, .query_skip = query_skip, .wanted = wanted};
  Estimate e;
  for (const TokenStage* stage : token_stages_) stage->run(e, pass);
  for (const ScoreStage* stage : score_stages_) e.scores = stage->run(e.scores, e, pass);
  if (query_skip > 1) {
    const CostScope part("decoder");
    e.scores = repeat_rows(e.scores, query_skip, pass.tokens());
  }
  const CostScope part("mask");
  e.estimate = column_softmax(e.scores, visible);
  return e;
}

Estimate Estimator::step(const LayerTokens& x, SeaState& state) const {
  const int64_t B = x.q.dim(0);
  const Tensor widths = state.lengths();
  NewTokens tokens{.x = x, .state = state, .at = widths.clone()};
  for (int64_t b = 0; b < B; ++b) --tokens.at.data<int64_t>()[b];
  Estimate e;
  for (size_t i = 0; i < token_stages_.size(); ++i) {
    token_stages_[i]->step(e, tokens, *state.token_stages[i]);
  }
  for (size_t i = 0; i < score_stages_.size(); ++i) {
    score_stages_[i]->append(e, tokens, *state.score_stages[i]);
  }
  auto score = [&](int64_t first, int64_t count) {
    Tensor scores;
    for (size_t i = 0; i < score_stages_.size(); ++i) {
      scores = score_stages_[i]->step(scores, e, tokens, first, count, *state.score_stages[i]);
    }
    copy_into(state.scores.slice(0, first, count), scores);
  };
  if (state.query_skip == 1) {
    score(0, B);
  } else {
    for (int64_t b = 0; b < B; ++b) {
      if (tokens.at.data<int64_t>()[b] % state.query_skip == 0) score(b, 1);
    }
  }
  e.scores = state.scores;
  e.estimate = column_softmax_step(e.scores, widths);
  return e;
}

void Estimator::make_state(SeaState& state, const nn::StateRequest& request) const {
  for (const TokenStage* stage : token_stages_) {
    state.token_stages.push_back(stage->make_state(state, request));
  }
  for (const ScoreStage* stage : score_stages_) {
    state.score_stages.push_back(stage->make_state(state, request));
  }
}

void Estimator::fill(SeaState& state, const Prompts& prompts) const {
  for (size_t i = 0; i < token_stages_.size(); ++i) {
    token_stages_[i]->fill(*state.token_stages[i], state, prompts);
  }
  for (size_t i = 0; i < score_stages_.size(); ++i) {
    score_stages_[i]->fill(*state.score_stages[i], state, prompts);
  }
}

}  // namespace brine::sea
