// The light block over whole sequences.
#include "sea/light/light.h"

#include "autograd/ops.h"
#include "sea/base/mask.h"
#include "tensor/meter/cost_meter.h"

namespace brine::sea {

void HeadGates::run(Estimate& e, const Pass& pass) const {
  const CostScope part("gates");
  e.gates = gates_of_heads(gates_, pass.batch(), pass.tokens());
}

void LearnedFeatures::run(Estimate& e, const Pass& pass) const {
  const CostScope part("prior");
  e.psi_q = pair_.query(pass.x.q, pass.x.q_content, pass.visible.lengths);
  e.psi_k = pair_.key(pass.x.k, pass.x.k_content, pass.visible.lengths);
}

Tensor TableScores::run(const Tensor& /*scores*/, Estimate& /*e*/, const Pass& pass) const {
  const CostScope part("decoder");
  return rows_from_table(bias, pass.batch(), pass.rows());
}

Tensor ShareScores::run(const Tensor& scores, Estimate& e, const Pass& pass) const {
  const CostScope part("prior");
  return performer_prior(scores, gain, e.psi_q, e.psi_k, pass.visible,
                         ColumnGrid(pass.query_skip, config_.prior_units), config_.least_share());
}

Tensor MeanKeyScores::run(const Tensor& scores, Estimate& /*e*/, const Pass& pass) const {
  const CostScope part("prior");
  return pooled_prior(scores, gain, pass.x.q, pass.x.k, pass.visible,
                      ColumnGrid(pass.query_skip, config_.prior_units));
}

bool LightEstimator::fits(const SeaConfig& config) {
  return !config.decodes() && config.gates == Gates::head && config.prior == Prior::learned &&
         config.pooled_prior;
}

LightEstimator::LightEstimator(nn::Init& init, const nn::AttentionShape& shape,
                               const SeaConfig& config)
    : Estimator(shape, config),
      gates_(token_stage<HeadGates>("", init, shape.heads, config.gate_bias)),
      table_(score_stage<TableScores>("decoder", init, shape.heads, config.columns)),
      shares_(score_stage<ShareScores>("prior", init, shape, config, config.prior_features)),
      means_(score_stage<MeanKeyScores>("prior", init, shape, config)),
      features_(token_stage<LearnedFeatures>("prior", init, shape, config.prior_features)) {}

Estimate LightEstimator::operator()(const LayerTokens& x, const Visibility& visible,
                                    int64_t query_skip, Wanted wanted) const {
  if (wanted != Wanted::estimate || query_skip > 1 || grad_enabled()) {
    return Estimator::operator()(x, visible, query_skip, wanted);
  }
  check_input(x, visible, query_skip);
  const Pass pass{.x = x, .visible = visible, .wanted = wanted};
  Estimate e;
  gates_.run(e, pass);
  features_.run(e, pass);
  const CostScope part("prior");
  e.estimate =
      table_estimate(table_.bias, {shares_.gain, e.psi_q, e.psi_k}, {means_.gain, x.q, x.k},
                     visible, config_.prior_units, config_.least_share());
  return e;
}

}  // namespace brine::sea
