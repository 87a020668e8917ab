// The estimator and its decoder for one new token of every sequence.
#include "autograd/ops.h"
#include "sea/decode_state.h"

namespace brine::sea {
namespace {

Tensor rows_of(const nn::Linear& layer, const Tensor& x) {
  return thin_linear(x, layer.weight.value, layer.bias->value);
}

// scores + gain [H] times pooled.
Tensor add_pooled(const Tensor& scores, const Tensor& pooled, const Tensor& gain) {
  return add(scores, mul(pooled, reshape(gain, {1, gain.dim(0), 1, 1})));
}

}  // namespace

Tensor MapDecoder::step_rows(const Tensor& row, const RowDecoder& rows, bool fresh) const {
  const int64_t B = row.dim(0), W = K_ / config_.width_reduction;
  const size_t last = convs_.size();
  auto convolved = [&](size_t i, const nn::Conv2d& conv) {
    return convolve_row(
        rows.windows[i], rows.weights[i], conv.bias ? conv.bias->value : Tensor(),
        {.outputs = conv.config.out, .dilation = conv.config.dilation, .relu = i != last});
  };
  auto push = [&](size_t i, const Tensor& x, int64_t columns) {
    const int64_t margin = (rows.windows[i].dim(2) - columns) / 2;
    push_row(rows.windows[i], x, margin);
  };
  push(0, row, W);
  const bool upsampled = config_.last_kernel > 1;
  const int64_t wide = upsampled ? K_ : W;
  if (fresh) {
    Tensor image;  // [B, W, channels]
    for (size_t i = 0; i < last; ++i) {
      image = convolved(i, *convs_[i]);
      if (i + 1 < last) push(i + 1, image, W);
    }
    if (upsampled) {
      image = upsample(image.view({B, 1, W, image.dim(2)}), {.tokens = 1, .columns = K_});
    }
    push(last, image.view({B, wide, image.dim(-1)}), wide);
  } else if (upsampled) {  // the row that the upsampling repeats
    const Tensor& window = rows.windows[last];
    const int64_t margin = (window.dim(2) - wide) / 2;
    push(last,
         window.slice(1, window.dim(1) - 1, 1)
             .slice(2, margin, wide)
             .contiguous()
             .view({B, wide, window.dim(3)}),
         wide);
  }
  const Tensor y = convolved(last, *last_);  // [B, wide, H]
  return heads_from_image(y.view({B, 1, wide, heads_}), 1, K_);
}

Tensor MapDecoder::step(const Tensor& x, const RowDecoder& rows, const Tensor& at) const {
  const int64_t B = x.dim(0), W = K_ / config_.width_reduction, stride = config_.token_stride;
  Tensor in = x;  // [B, H, 1, c_h W]
  if (norm_in_) {
    in = (*norm_in_)(x.view({B, heads_, 1, config_.channel_expansion, W})).view(x.shape());
  }
  Tensor row = image_from_heads(in, W, {}, Tensor());
  row = row.view({B, W, row.dim(3)});
  Tensor scores;
  if (stride == 1) {
    scores = step_rows(row, rows, true);
  } else {
    scores = Tensor::empty({B, heads_, 1, K_}, x.dtype(), x.device());
    for (int64_t b = 0; b < B; ++b) {
      copy_into(scores.slice(0, b, 1), step_rows(row.slice(0, b, 1), rows.slots(b, 1),
                                                 at.data<int64_t>()[b] % stride == 0));
    }
  }
  return norm_out_ ? (*norm_out_)(scores) : scores;
}

// C_perf and Z of the new tokens.
void Estimator::mix_step(Estimate& e, const LayerTokens& x, SeaState& state,
                         const Tensor& at) const {
  e.performer_context = linear_attention_step(*state.performer, *state.key_sums, e.phi_q, e.phi_k,
                                              identity->table.value, x.v, at, key_eps());
  Tensor both = concat_last(e.performer_context, per_head(x.v));
  const bool token = config_.mu_scope == MuScope::token;
  if (token) both = merge_heads(both);
  Tensor z = gelu(mu->norm(rows_of(mu->linear, both)));
  e.features = token ? split_heads(z, shape_.heads) : z;
}

// scores of the sequences first .. first + count, all of which have a query that is not skipped.
void Estimator::step_scores(const Estimate& e, const LayerTokens& x, SeaState& state, int64_t first,
                            int64_t count) const {
  auto mine = [&](const Tensor& t) { return t.slice(0, first, count); };
  const Tensor widths = mine(state.lengths());
  Tensor scores;
  if (decoder) {
    Tensor at = widths.clone();
    for (int64_t b = 0; b < count; ++b) {
      at.data<int64_t>()[b] = (at.data<int64_t>()[b] - 1) / state.query_skip;
    }
    scores = decoder->step(rows_of(*nu, mine(e.features)), state.rows().slots(first, count), at);
  } else {
    scores = rows_from_table(table->bias, count, 1);
  }
  if (e.psi_q.defined()) {
    scores = performer_prior_step(mine(*state.borders), mine(*state.border_width), scores,
                                  *prior->gain, mine(e.psi_q), mine(*state.key_features), widths,
                                  least_share(), config_.prior_units);
  }
  if (state.pooled_borders) {
    const Tensor pooled =
        pooled_scores_step(mine(*state.pooled_borders), mine(*state.pooled_width), mine(x.q),
                           mine(state.keys), widths, config_.prior_units);
    if (config_.pooled_prior) scores = add_pooled(scores, pooled, *prior->pooled_gain);
    if (state.pooled) copy_into(mine(*state.pooled), pooled);
  }
  copy_into(mine(state.scores), scores);
}

Estimate Estimator::step(const LayerTokens& x, SeaState& state) const {
  const int64_t B = x.q.dim(0);
  const double eps = config_.resolved_eps();
  const Tensor widths = state.lengths();
  Tensor at = widths.clone();
  for (int64_t b = 0; b < B; ++b) --at.data<int64_t>()[b];
  Estimate e;
  if (performer) {
    e.phi_q = relu_features_step(x.q, performer->projection, eps);
    e.phi_k = relu_features_step(x.k, performer->projection, eps);
  }
  if (config_.mixes()) mix_step(e, x, state, at);
  take_features(e, x, {});
  if (state.key_features) {
    append_to_units(*state.key_features, e.psi_k, at, config_.columns, config_.prior_units);
  }
  e.gates = gates ? rows_of(*gates, e.features) : gates_of(e, B, 1);
  if (state.query_skip == 1) {
    step_scores(e, x, state, 0, B);
  } else {
    for (int64_t b = 0; b < B; ++b) {
      if (at.data<int64_t>()[b] % state.query_skip == 0) step_scores(e, x, state, b, 1);
    }
  }
  e.scores = state.scores;
  e.estimate = column_softmax_step(e.scores, widths);
  e.order = e.estimate;
  if (state.pooled) {
    e.pooled = *state.pooled;
    e.order = blend(e.estimate, column_softmax_step(e.pooled, widths), config_.pooled);
  }
  return e;
}

}  // namespace brine::sea
