// The light block over whole sequences and token by token, and the features of its prior.
#include "sea/light/light.h"

#include <algorithm>

#include "sea/base/mask.h"
#include "sea/columns/decode_state.h"
#include "tensor/meter/cost_meter.h"

namespace brine::sea {

namespace {

// R / 2 [heads, m, d] of a projection R [m, d].
Tensor half_in_every_head(const nn::Init& init, int64_t heads, const Tensor& R) {
  const Shape shape{heads, R.dim(0), R.dim(1)};
  const double* values = R.data<double>();
  return Tensor::computed(shape, init.dtype, init.device,
                          [&](int64_t i) { return values[i % R.numel()] / 2; });
}

// Sums of units are stored in bf16 unless f32 is requested: the rounding error, about 1e-3 of a
// share, is below that of units. A bf16 sum of many keys would stop growing, so units of more than
// kFew keys at the last position (`longest`, the same for every capacity) stay in f32. Features
// without units have the cache's type, but bf16 for f16, which overflows.
Dtype type_of_features(const nn::StateRequest& r, int64_t longest, int64_t units) {
  constexpr int64_t kFew = 8;
  if (r.dtype != Dtype::f32 || r.cache == Dtype::f32) return r.dtype;
  if (units == 0) return r.cache ? Dtype::bf16 : Dtype::f32;
  return longest <= kFew ? Dtype::bf16 : Dtype::f32;
}

struct ShareState : StageState {
  ShareState(Tensor& features, Tensor& borders, Tensor& width)
      : features(features), borders(borders), width(width) {}
  Tensor& features;  // psi_k of every token or its sums by units [B, G, rows, m]
  Tensor prompt;     // psi_k [1, G, t, m] of the slot whose prompt is being read in parts
  int64_t slot = 0;  // that slot
  // The sums at the borders of columns f64 [B, G, K + 1, .], and the width that they belong to, i64
  // [B].
  Tensor &borders, &width;
};

// The sums of keys at the borders of columns.
struct MeanKeyState : StageState {
  MeanKeyState(Tensor& borders, Tensor& width) : borders(borders), width(width) {}
  Tensor &borders, &width;  // f64 [B, G, K + 1, .]; the width that they belong to, i64 [B]
};

}  // namespace

PriorFeatures::PriorFeatures(nn::Init& init, int64_t heads, const Tensor& projection, bool rotary)
    : weight(parameter("weight", half_in_every_head(init, heads, projection))),
      bias(parameter("bias", init.zeros({heads, projection.dim(0)}), false)) {
  if (!rotary) return;
  content = parameter("content", init.normal({heads, projection.dim(0), projection.dim(1)}, 0.01));
}

Tensor PriorFeatures::operator()(const Tensor& x, const Tensor& x_content,
                                 const Tensor& lengths) const {
  check(!content || x_content.defined(),
        "sea: the learned prior of a model with rotary positions needs q and k before rotation");
  return exp_features(
      x, content ? x_content : Tensor(),
      {.weight = weight, .bias = bias, .content = content ? content->get().value : Tensor()},
      lengths);
}

void HeadGates::run(Estimate& e, const Pass& pass) const {
  const CostScope part("gates");
  e.gates = gates_of_heads(gates_, pass.batch(), pass.tokens());
}

void LearnedFeatures::run(Estimate& e, const Pass& pass) const {
  const CostScope part("prior");
  e.psi_q = query_(pass.x.q, pass.x.q_content, pass.visible.lengths);
  e.psi_k = key_(pass.x.k, pass.x.k_content, pass.visible.lengths);
}

Tensor TableScores::run(const Tensor& /*scores*/, Estimate& /*e*/, const Pass& pass) const {
  const CostScope part("decoder");
  return rows_from_table(bias, pass.batch(), pass.rows());
}

Tensor ShareScores::run(const Tensor& scores, Estimate& e, const Pass& pass) const {
  const CostScope part("prior");
  return performer_prior(scores, gain, e.psi_q, e.psi_k, pass.visible,
                         ColumnGrid(pass.query_skip, config_.prior_units), config_.min_share());
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
  add_estimate(e, pass, x.k);
  return e;
}

Estimate LightEstimator::part(const LayerTokens& x, const SeaState& state, int64_t slot) const {
  const int64_t tokens = state.length(slot), m = config_.prior_features;
  const Visibility visible{.first = tokens - x.q.dim(2)};
  const Pass pass{.x = x, .visible = visible, .wanted = Wanted::estimate};
  Estimate e;
  gates_.run(e, pass);
  features_.run(e, pass);
  const auto stage = std::find(score_stages_.begin(), score_stages_.end(), &shares_);
  const StageState& kept = *state.score_stages[size_t(stage - score_stages_.begin())];
  e.psi_q = e.psi_q.slice(3, 0, m);  // m is padded on a GPU
  e.psi_k = concat({shares_.earlier_features(kept, slot, visible.first, e.psi_k.dtype()),
                    e.psi_k.slice(3, 0, m)},
                   2);
  add_estimate(e, pass, state.rows(slot, x.q.dtype()).first.slice(2, 0, tokens));
  return e;
}

void LightEstimator::add_estimate(Estimate& e, const Pass& pass, const Tensor& k) const {
  const CostScope part("prior");
  e.estimate =
      table_estimate(table_.bias, {shares_.gain, e.psi_q, e.psi_k}, {means_.gain, pass.x.q, k},
                     pass.visible, config_.prior_units, config_.min_share());
}

void HeadGates::step(Estimate& e, const NewTokens& tokens, StageState& /*kept*/) const {
  e.gates = gates_of_heads(gates_, tokens.x.q.dim(0), 1);
}

void LearnedFeatures::step(Estimate& e, const NewTokens& tokens, StageState& /*kept*/) const {
  e.psi_q = query_(tokens.x.q, tokens.x.q_content, {});
  e.psi_k = key_(tokens.x.k, tokens.x.k_content, {});
}

Tensor TableScores::step(const Tensor& /*scores*/, const Estimate& /*e*/,
                         const NewTokens& /*tokens*/, int64_t /*first*/, int64_t count,
                         StageState& /*kept*/) const {
  return rows_from_table(bias, count, 1);
}

std::unique_ptr<StageState> ShareScores::make_state(SeaState& state,
                                                    const nn::StateRequest& r) const {
  const int64_t B = r.batch, G = shape_.groups(), K = config_.columns, u = config_.prior_units;
  const std::string suffix = suffix_of_borders(config_);
  const int64_t rows = u && r.capacity / K / 2 >= u ? 2 * u * K : r.capacity;
  const Dtype type = type_of_features(r, math::unit_of_sums(shape_.max_positions, K, u), u);
  Tensor& features = state.part("key_features" + suffix, {B, G, rows, features_}, type, 2,
                                [K, u](int64_t tokens) { return unit_rows(tokens, K, u); });
  Tensor& borders =
      state.part("borders" + suffix, {B, G, K + 1, border_columns(features_)}, Dtype::f64);
  return std::make_unique<ShareState>(features, borders,
                                      state.part("border_width", {B}, Dtype::i64));
}

Tensor ShareScores::earlier_features(const StageState& kept, int64_t slot, int64_t t,
                                     Dtype dtype) const {
  const auto& state = static_cast<const ShareState&>(kept);
  if (state.prompt.defined() && state.slot == slot && state.prompt.dim(2) == t) {
    return state.prompt.to(dtype);
  }
  // A row after them has units of as many keys or of several of these.
  const int64_t K = config_.columns, u = config_.prior_units, G = shape_.groups();
  const int64_t unit = math::unit_of_sums(t, K, u), units = unit_rows(t, K, u);
  const Tensor sums = state.features.slice(0, slot, 1).slice(2, 0, units);
  const Tensor all = Tensor::zeros({1, G, units, unit, features_}, dtype, sums.device());
  copy_into(all.slice(3, 0, 1), sums.contiguous().to(dtype).view({1, G, units, 1, features_}));
  return all.view({1, G, units * unit, features_}).slice(2, 0, t);
}

void ShareScores::fill(StageState& kept, const SeaState& state, const Prompts& prompts) const {
  auto& share = static_cast<ShareState&>(kept);
  const Tensor& features = share.features;
  const Tensor psi_k = prompts.e.psi_k.detach().slice(3, 0, features.dim(3));
  const int64_t B = psi_k.dim(0), K = config_.columns, u = config_.prior_units;
  // Kept as the keys are: f16 is too narrow for the largest.
  const Dtype type = item_size(state.keys.dtype()) == 2 ? Dtype::bf16 : psi_k.dtype();
  share.prompt = prompts.more && B == 1 ? psi_k.contiguous().to(type) : Tensor();
  share.slot = prompts.first;
  const Tensor to = features.slice(0, prompts.first, B);
  if (u == 0) return copy_into(to.slice(2, 0, psi_k.dim(2)), psi_k);
  std::vector<int64_t> units, rows;
  for (int64_t b = 0; b < B; ++b) {
    units.push_back(math::unit_of_sums(state.length(prompts.first + b), K, u));
    rows.push_back(unit_rows(state.length(prompts.first + b), K, u));
  }
  const Tensor sums =
      sum_units(psi_k, state.lengths().slice(0, prompts.first, B), Tensor::from(units, {B}),
                *std::max_element(rows.begin(), rows.end()), psi_k.dtype());
  for (int64_t b = 0; b < B; ++b) {
    copy_into(to.slice(0, b, 1).slice(2, 0, rows[size_t(b)]),
              sums.slice(0, b, 1).slice(2, 0, rows[size_t(b)]));
  }
}

void ShareScores::append(const Estimate& e, const NewTokens& tokens, StageState& kept) const {
  auto& share = static_cast<ShareState&>(kept);
  share.prompt = {};
  append_to_units(share.features, e.psi_k, tokens.at, config_.columns, config_.prior_units);
}

Tensor ShareScores::step(const Tensor& scores, const Estimate& e, const NewTokens& tokens,
                         int64_t first, int64_t count, StageState& kept) const {
  auto& state = static_cast<ShareState&>(kept);
  auto part = [&](const Tensor& t) { return t.slice(0, first, count); };
  return performer_prior_step(part(state.borders), part(state.width), scores, gain, part(e.psi_q),
                              part(state.features), part(tokens.state.lengths()),
                              config_.min_share(), config_.prior_units);
}

std::unique_ptr<StageState> MeanKeyScores::make_state(SeaState& state,
                                                      const nn::StateRequest& r) const {
  Tensor& borders =
      state.part("pooled_borders" + suffix_of_borders(config_),
                 {r.batch, shape_.groups(), config_.columns + 1, border_columns(shape_.head_size)},
                 Dtype::f64);
  return std::make_unique<MeanKeyState>(borders, state.part("pooled_width", {r.batch}, Dtype::i64));
}

Tensor MeanKeyScores::step(const Tensor& scores, const Estimate& /*e*/, const NewTokens& tokens,
                           int64_t first, int64_t count, StageState& kept) const {
  const auto& state = static_cast<MeanKeyState&>(kept);
  auto part = [&](const Tensor& t) { return t.slice(0, first, count); };
  const Tensor pooled = pooled_scores_step(part(state.borders), part(state.width), part(tokens.x.q),
                                           part(tokens.state.keys), part(tokens.state.lengths()),
                                           config_.prior_units);
  return add(scores, mul(pooled, reshape(gain, {1, gain.value.dim(0), 1, 1})));
}

}  // namespace brine::sea
