// The stages of the estimator, in order.
#include "sea/estimator.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "autograd/node.h"
#include "tensor/meter/cost_meter.h"

namespace brine::sea {
namespace {

const nn::AttentionShape& checked(const nn::AttentionShape& shape, const SeaConfig& config) {
  config.validate(shape);
  return shape;
}

int64_t mu_width(const SeaConfig& c, int64_t heads) {
  return c.mu_scope == MuScope::token ? heads : 1;
}

// R / 2 [heads, m, d] of a projection R [m, d].
Tensor half_in_every_head(const nn::Init& init, int64_t heads, const Tensor& R) {
  const Shape shape{heads, R.dim(0), R.dim(1)};
  return Tensor::filled(shape, init.dtype, init.device, [&](const Tensor& y) {
    dispatch_float(y.dtype(), [&]<class F>() {
      for (int64_t i = 0; i < y.numel(); ++i) {
        y.data<F>()[i] = F(R.data<double>()[i % R.numel()] / 2);
      }
    });
  });
}

// The lengths of sequences after every step-th row is kept.
Tensor skipped_lengths(const Tensor& lengths, int64_t step) {
  if (!lengths.defined() || step == 1) return lengths;
  Tensor y = lengths.clone();
  for (int64_t b = 0; b < y.numel(); ++b) {
    int64_t& n = y.data<int64_t>()[b];
    n = (n + step - 1) / step;
  }
  return y;
}

void check_tokens(const LayerTokens& x, const nn::AttentionShape& shape) {
  const Tensor &q = x.q, &k = x.k;
  check(q.rank() == 4 && q.dim(1) == shape.heads && q.dim(3) == shape.head_size && q.dim(2) > 0 &&
            k.shape() == Shape{q.dim(0), shape.groups(), q.dim(2), q.dim(3)} &&
            x.v.shape() == k.shape(),
        "sea: q must be [B, ", shape.heads, ", T, ", shape.head_size, "], k and v [B, ",
        shape.groups(), ", T, ", shape.head_size, "], got ", q.shape(), ", ", k.shape(), ", ",
        x.v.shape());
}

}  // namespace

PriorFeatures::PriorFeatures(nn::Init& init, int64_t heads, const Tensor& projection, bool rotary)
    : weight(parameter("weight", half_in_every_head(init, heads, projection))),
      bias(parameter("bias", init.zeros({heads, projection.dim(0)}), false)),
      content(rotary ? &parameter("content",
                                  init.normal({heads, projection.dim(0), projection.dim(1)}, 0.01))
                     : nullptr) {}

Tensor PriorFeatures::operator()(const Tensor& x, const Tensor& x_content,
                                 const Tensor& lengths) const {
  check(!content || x_content.defined(),
        "sea: the learned prior of a model with rotary positions needs q and k before rotation");
  return exp_features(
      x, content ? x_content : Tensor(),
      {.weight = weight, .bias = bias, .content = content ? content->value : Tensor()}, lengths);
}

ColumnPrior::ColumnPrior(nn::Init& init, const nn::AttentionShape& shape, const SeaConfig& config)
    : gain(config.prior == Prior::none ? nullptr
                                       : &parameter("gain", init.full({shape.heads}, 1), false)),
      pooled_gain(config.pooled_prior
                      ? &parameter("pooled_gain", init.full({shape.heads}, 1), false)
                      : nullptr) {
  if (config.prior != Prior::learned) return;
  const int64_t m = config.prior_features, d = shape.head_size;
  const RandomSlice slice = init.random.take(uint64_t(nn::random_projection_draws(m, d)));
  const Tensor R = nn::random_projection(m, d, slice, 0, Dtype::f64);
  query = &child<PriorFeatures>("query", init, shape.heads, R, shape.rotary);
  key = &child<PriorFeatures>("key", init, shape.groups(), R, shape.rotary);
}

// (1 - share) a + share b, without a gradient.
Tensor blend(const Tensor& a, const Tensor& b, double share) {
  return add(scale(a.detach(), 1 - share), scale(b.detach(), share));
}

Estimator::Estimator(nn::Init& init, const nn::AttentionShape& shape, const SeaConfig& config)
    : config_(config), shape_(checked(shape, config)) {
  const int64_t H = shape.heads, d = shape.head_size, K = config.columns;
  if (config.performs()) {
    performer = &child<nn::RandomProjection>("performer", init,
                                             nn::feature_count(d, config.feature_divisor), d);
  }
  if (config.mixes()) {
    const int64_t rows = config.max_positions ? config.max_positions : shape.max_positions;
    if (shape.causal) identity = &child<IdentityTable>("v_identity", init, rows, d);
    const int64_t wide = d * mu_width(config, H);
    mu = &child<Mu>("mu", init, 3 * wide, 2 * wide);
  }
  if (config.decodes()) {
    const MapDecoderShape decoding = config.resolved_decoder(shape.causal);
    nu = &child<nn::Linear>("nu", init, 2 * d,
                            decoding.channel_expansion * K / decoding.width_reduction);
    decoder = &child<MapDecoder>("decoder", init, H, K, decoding, shape.causal);
  } else {
    table = &child<ScoreTable>("decoder", init, H, K);
  }
  if (config.gates == Gates::head) {
    head_gates = &parameter("gates", init.full({H, 2}, config.gate_bias), false);
  } else {
    gates = &child<nn::Linear>("scaler", init, 2 * d, 2);
    gates->bias->value = init.full({2}, config.gate_bias);
  }
  if (config.prior != Prior::none || config.pooled_prior) {
    prior = &child<ColumnPrior>("prior", init, shape, config);
  }
}

void Estimator::on_step(int64_t steps_done) {
  if (performer) performer->redraw_when_due(steps_done, config_.redraw_interval);
}

Tensor Estimator::random_features(const Tensor& x, const Visibility& visible,
                                  FeatureSide side) const {
  const double eps = config_.resolved_eps();
  if (!config_.softmax_features()) {
    return brine::relu_features(x, performer->projection, eps, visible.lengths);
  }
  return brine::softmax_features(x, performer->projection, eps, visible.lengths, side);
}

Tensor Estimator::mixed(const Tensor& performer_context, const Tensor& v) const {
  if (config_.mu_scope == MuScope::token) {
    Tensor all = merge_heads(concat_last(performer_context, per_head(v)));  // [B, T, H 3d]
    return split_heads(gelu(mu->norm(mu->linear(all))), shape_.heads);
  }
  return gelu(
      mu->norm(linear_pair(performer_context, v, mu->linear.weight, mu->linear.bias->value)));
}

Tensor Estimator::identity_rows(int64_t batch, int64_t T, const Visibility& visible) const {
  const int64_t d = shape_.head_size;
  if (!identity) {
    const Tensor& R = performer->projection.value;
    return resampled_identity({batch, T, d}, config_.identity_interpolation, visible.lengths,
                              R.dtype(), R.device());
  }
  const Tensor table = identity->table.value.detach();
  check(table.dim(0) >= T, "sea: ", T, " tokens, but v_identity.table has ", table.dim(0),
        " positions");
  Tensor rows = Tensor::zeros({batch, T, d}, table.dtype(), table.device());
  const RowWidths widths(visible, T);
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t n = widths.valid(b);
    if (n == 0) continue;
    assign(rows.select(0, b).slice(0, 0, n), table.slice(0, 0, n));
  }
  return rows;
}

// x [B, G, T, d] for each head of queries.
Tensor Estimator::per_head(const Tensor& x) const {
  return repeat_heads(x, shape_.heads / x.dim(1));
}

// The stages up to Z.
void Estimator::mix(Estimate& e, const LayerTokens& x, const Visibility& visible) const {
  const Tensor id =
      identity ? identity->table.value : identity_rows(x.q.dim(0), x.q.dim(2), visible);
  e.performer_context = linear_attention(e.phi_q, e.phi_k, id, x.v, visible, key_eps());
  const CostScope part("mu, nu");
  e.features = mixed(e.performer_context, x.v);
}

// The features of the prior.
void Estimator::take_features(Estimate& e, const LayerTokens& x, const Visibility& visible) const {
  if (config_.prior == Prior::performer) {
    e.psi_q = e.phi_q;
    e.psi_k = e.phi_k;
  } else if (config_.prior == Prior::learned) {
    e.psi_q = (*prior->query)(x.q, x.q_content, visible.lengths);
    e.psi_k = (*prior->key)(x.k, x.k_content, visible.lengths);
  }
}

Tensor Estimator::gates_of(const Estimate& e, int64_t batch, int64_t rows) const {
  if (gates) return (*gates)(e.features);
  const int64_t H = shape_.heads;
  return reshape(rows_from_table(reshape(*head_gates, {H, 2}), batch, rows), {batch, H, rows, 2});
}

// The estimate alone is one pass over memory; its scores would be a pass for each of their parts.
// Costs are counted by these parts.
bool Estimator::is_one_pass(int64_t query_skip) const {
  return table && !performer && prior && prior->gain && prior->pooled_gain && config_.pooled == 0 &&
         query_skip == 1 && !grad_enabled() && !CostMeter::current();
}

Estimate Estimator::operator()(const LayerTokens& x, const Visibility& visible, int64_t query_skip,
                               Wanted wanted) const {
  check(visible.causal == shape_.causal, "sea: a model that is ", shape_.causal ? "" : "not ",
        "causal was given a mask that is ", visible.causal ? "" : "not ", "causal");
  check(query_skip >= 1, "sea: query_skip is ", query_skip, ", must be at least 1");
  check_tokens(x, shape_);
  const int64_t B = x.q.dim(0), T = x.q.dim(2), R = (T + query_skip - 1) / query_skip;
  const ColumnGrid grid(query_skip, config_.prior_units);
  Estimate e;
  std::optional<CostScope> part(std::in_place, "performer");
  if (performer) {
    e.phi_q = random_features(x.q, visible, FeatureSide::queries);
    e.phi_k = random_features(x.k, visible, FeatureSide::keys);
  }
  if (config_.mixes()) mix(e, x, visible);
  part.emplace("mu, nu");
  e.gates = gates_of(e, B, T);
  if (wanted == Wanted::estimate && is_one_pass(query_skip)) {
    part.emplace("performer");
    take_features(e, x, visible);
    e.estimate = e.order = table_estimate(table->bias, {*prior->gain, e.psi_q, e.psi_k},
                                          {*prior->pooled_gain, x.q, x.k}, visible,
                                          config_.prior_units, least_share());
    return e;
  }
  Tensor rows;
  if (decoder) {
    rows = (*nu)(query_skip == 1 ? e.features : every_nth_row(e.features, query_skip));
  }
  part.emplace("decoder");
  e.scores = decoder ? (*decoder)(rows, skipped_lengths(visible.lengths, query_skip),
                                  wanted == Wanted::images ? &e.decoder_images : nullptr)
                     : rows_from_table(table->bias, B, R);
  part.emplace("performer");
  take_features(e, x, visible);
  if (e.psi_q.defined()) {
    e.scores =
        performer_prior(e.scores, *prior->gain, e.psi_q, e.psi_k, visible, grid, least_share());
  }
  if (config_.pooled_prior) {
    e.scores = pooled_prior(e.scores, *prior->pooled_gain, x.q, x.k, visible, grid);
  }
  part.emplace("decoder");
  if (query_skip > 1) e.scores = repeat_rows(e.scores, query_skip, T);
  part.emplace("mask");
  e.estimate = column_softmax(e.scores, visible);
  e.order = e.estimate;
  if (config_.pooled > 0) {
    e.pooled = pooled_scores(x.q.detach(), x.k.detach(), visible, config_.columns, grid);
    if (query_skip > 1) e.pooled = repeat_rows(e.pooled, query_skip, T);
    e.order = blend(e.estimate, column_softmax(e.pooled, visible), config_.pooled);
  }
  return e;
}

Tensor resampled_identity(const Shape& shape, Interpolation interpolation, const Tensor& lengths,
                          Dtype dtype, Device device) {
  return brine::resampled_identity(shape, interpolation == Interpolation::nearest, lengths, dtype,
                                   device);
}

}  // namespace brine::sea
