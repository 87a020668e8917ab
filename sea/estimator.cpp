// The stages of the estimator, in order.
#include "sea/estimator.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "nn/layers/random_features.h"
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

}  // namespace

Performer::Performer(nn::Init& init, int64_t m, int64_t d)
    : slice(init.random.take(uint64_t(nn::random_projection_draws(m, d)))),
      projection(buffer("projection", nn::random_projection(m, d, slice, 0, init.dtype))) {}

void Performer::redraw(uint64_t draw) {
  const Tensor& R = projection.value;
  projection.value =
      nn::random_projection(R.dim(0), R.dim(1), slice, draw, R.dtype()).to(R.device());
}

Estimator::Estimator(nn::Init& init, const nn::AttentionShape& shape, const SeaConfig& config)
    : config_(config),
      shape_(checked(shape, config)),
      performer(child<Performer>("performer", init,
                                 nn::feature_count(shape.head_size, config.feature_divisor),
                                 shape.head_size)),
      identity(shape.causal ? &child<IdentityTable>(
                                  "v_identity", init,
                                  config.max_positions ? config.max_positions : shape.max_positions,
                                  shape.head_size)
                            : nullptr),
      mu(child<Mu>("mu", init, 3 * shape.head_size * mu_width(config, shape.heads),
                   2 * shape.head_size * mu_width(config, shape.heads))),
      nu(child<nn::Linear>("nu", init, 2 * shape.head_size,
                           config.resolved_decoder(shape.causal).channel_expansion *
                               config.columns /
                               config.resolved_decoder(shape.causal).width_reduction)),
      decoder(child<MapDecoder>("decoder", init, shape.heads, config.columns,
                                config.resolved_decoder(shape.causal), shape.causal)),
      gates(child<nn::Linear>("scaler", init, 2 * shape.head_size, 2)),
      prior(config.prior == Prior::none ? nullptr : &child<PriorGain>("prior", init, shape.heads)) {
  gates.bias->value = init.full({2}, config.gate_bias);
}

void Estimator::on_step(int64_t steps_done) {
  const int64_t interval = config_.redraw_interval;
  if (interval <= 0 || steps_done <= 0 || steps_done % interval != 0) return;
  performer.redraw(uint64_t(steps_done / interval));
}

Tensor Estimator::random_features(const Tensor& x, const Visibility& visible,
                                  FeatureSide side) const {
  const double eps = config_.resolved_eps();
  if (!config_.softmax_features()) {
    return brine::relu_features(x, performer.projection, eps, visible.lengths);
  }
  return brine::softmax_features(x, performer.projection, eps, visible.lengths, side);
}

Tensor Estimator::mixed(const Tensor& performer_context, const Tensor& v) const {
  if (config_.mu_scope == MuScope::token) {
    Tensor all = merge_heads(concat_last(performer_context, v));  // [B, T, H 3d]
    return split_heads(gelu(mu.norm(mu.linear(all))), shape_.heads);
  }
  return gelu(mu.norm(linear_pair(performer_context, v, mu.linear.weight, mu.linear.bias->value)));
}

Tensor Estimator::identity_rows(int64_t batch, int64_t T, const Visibility& visible) const {
  const int64_t d = shape_.head_size;
  if (!identity) {
    const Tensor& R = performer.projection.value;
    return resampled_identity(batch, T, d, visible.lengths, R.dtype(), R.device());
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

Estimate Estimator::operator()(const Tensor& q, const Tensor& k, const Tensor& v,
                               const Visibility& visible, int64_t query_skip,
                               bool keep_images) const {
  check(visible.causal == shape_.causal, "sea: a model that is ", shape_.causal ? "" : "not ",
        "causal was given a mask that is ", visible.causal ? "" : "not ", "causal");
  check(query_skip >= 1, "sea: query_skip is ", query_skip, ", must be at least 1");
  check(q.rank() == 4 && q.dim(1) == shape_.heads && q.dim(3) == shape_.head_size && q.dim(2) > 0 &&
            k.shape() == q.shape() && v.shape() == q.shape(),
        "sea: q, k and v must be [B, ", shape_.heads, ", T, ", shape_.head_size, "], got ",
        q.shape(), ", ", k.shape(), ", ", v.shape());
  const int64_t T = q.dim(2);
  Estimate e;
  std::optional<CostScope> part(std::in_place, "performer");
  e.phi_q = random_features(q, visible, FeatureSide::queries);
  e.phi_k = random_features(k, visible, FeatureSide::keys);
  const Tensor id = identity ? identity->table.value : identity_rows(q.dim(0), T, visible);
  e.performer_context = linear_attention(e.phi_q, e.phi_k, id, v, visible, key_eps());
  part.emplace("mu, nu");
  e.features = mixed(e.performer_context, v);
  e.gates = gates(e.features);
  Tensor z = query_skip == 1 ? e.features : every_nth_row(e.features, query_skip);
  Tensor rows = nu(z);
  part.emplace("decoder");
  e.scores = decoder(rows, skipped_lengths(visible.lengths, query_skip),
                     keep_images ? &e.decoder_images : nullptr);
  if (prior) {
    part.emplace("performer");
    e.scores = performer_prior(e.scores, prior->gain, e.phi_q, e.phi_k, visible, query_skip);
  }
  part.emplace("decoder");
  if (query_skip > 1) e.scores = repeat_rows(e.scores, query_skip, T);
  part.emplace("mask");
  e.estimate = column_softmax(e.scores, visible);
  return e;
}

Tensor resampled_identity(int64_t batch, int64_t T, int64_t d, const Tensor& lengths, Dtype dtype,
                          Device device) {
  const RowWidths widths({.causal = false, .lengths = lengths}, T);
  return Tensor::filled({batch, T, d}, dtype, device, [&](const Tensor& y) {
    fill(y, 0.0);
    dispatch_float(dtype, [&]<class F>() {
      for (int64_t b = 0; b < batch; ++b) {
        const int64_t L = widths.valid(b);
        for (int64_t p = 0; p < L; ++p) {
          const double at = L == 1 ? 0 : double(p * (d - 1)) / double(L - 1);
          F* row = y.data<F>() + (b * T + p) * d;
          const int64_t first = int64_t(at);
          for (int64_t c = first; c <= std::min(first + 1, d - 1); ++c) {
            row[c] = F(std::max(0.0, 1 - std::abs(at - double(c))));
          }
        }
      }
    });
  });
}

}  // namespace brine::sea
