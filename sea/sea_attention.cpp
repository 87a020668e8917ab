// SEA attention in the order of the paper; registers "sea".
#include "sea/sea_attention.h"

#include <optional>

#include "autograd/ops.h"
#include "nn/attention/block_lists.h"
#include "nn/attention/chosen_keys.h"
#include "sea/paper/paper_estimator.h"
#include "tensor/meter/cost_meter.h"

namespace brine::sea {
namespace {

void show(const nn::AttentionInput& in, const Estimate& e, const Mask& mask,
          const Tensor& probabilities, const Tensor& average) {
  if (e.features.defined()) {
    in.tap->put("C_perf", e.performer_context);
    in.tap->put("Z", e.features);
  }
  in.tap->put("scores", e.scores);
  in.tap->put("estimate", e.estimate);
  in.tap->put("n_sel", mask.selection.n_sel);
  in.tap->put("selected", mask.selection.selected);
  nn::show_mask(in, mask.csr);
  in.tap->put("probabilities", probabilities);
  in.tap->put("gates", e.gates);
  in.tap->put("c_avg", average);
}

LayerTokens tokens_of(const nn::AttentionInput& in) {
  return {.q = in.q, .k = in.k, .v = in.v, .q_content = in.q_content, .k_content = in.k_content};
}

}  // namespace

SeaAttention::SeaAttention(nn::Init& init, const nn::AttentionShape& shape, const SeaConfig& config)
    : config_(config), shape_(shape), estimator_(adopt("", make_estimator(init, shape, config))) {}

nn::AttentionTraits SeaAttention::traits() const {
  return {.sparse = true,
          .query_skip = true,
          .incremental = shape_.causal,
          .groups = true,
          .estimates = true,
          .part_step = shape_.causal && estimator_.part_numbers() ? 1 : 0,
          .part_numbers = estimator_.part_numbers(),
          .reads_hidden = false,
          .reads_content = shape_.rotary && config_.prior == Prior::learned};
}

Tensor SeaAttention::forward(const nn::AttentionInput& in) {
  if (estimator_.part_numbers() && nn::continues(in)) return go_on(in);
  const bool images = in.state && config_.decodes();
  const Wanted wanted = images ? Wanted::images : in.tap ? Wanted::scores : Wanted::estimate;
  Estimate e = estimator_(tokens_of(in), in.visible, in.options.query_skip, wanted);
  if (in.state) {
    state_of(in, *in.state).fill({in.slot, tokens_of(in), in.visible, e, in.more}, estimator_);
  }
  std::optional<CostScope> part(std::in_place, "mask");
  Mask mask = select(e, in, in.visible, in.k.dim(2));
  part.emplace("sparse attention");
  Tensor probabilities;
  Tensor attended = nn::masked_attention(in, mask.csr, in.tap ? &probabilities : nullptr);
  part.emplace("output");
  Tensor average = average_values(e.estimate, in.v, in.visible);
  if (in.tap) {
    if (e.identity_rows.defined()) in.tap->put("V_I", e.identity_rows);
    if (config_.widen == Widen::probabilities) {
      in.tap->put("log_estimate", column_log_softmax(e.scores, in.visible));
    }
    show(in, e, mask, probabilities, per_head(average.detach()));
  }
  return mix_outputs(attended, average, e.gates, in.visible);
}

// The mask of the estimate, or of the tap's forced columns.
Mask SeaAttention::select(const Estimate& e, const nn::AttentionInput& in,
                          const Visibility& visible, int64_t keys) const {
  SelectConfig config = config_.selection();
  if (in.options.k) config.k = in.options.k;
  return make_mask(e.estimate, visible, config, keys,
                   in.tap ? in.tap->forced("selected") : Tensor());
}

// x [B, G, T, d] for each head of queries.
Tensor SeaAttention::per_head(const Tensor& x) const {
  return repeat_heads(x, shape_.heads / x.dim(1));
}

std::unique_ptr<nn::AttentionState> SeaAttention::make_state(
    const nn::StateRequest& request) const {
  check(shape_.causal, "sea: an encoder is not decoded token by token");
  return std::make_unique<SeaState>(estimator_, shape_, request);
}

SeaState& SeaAttention::state_of(const nn::AttentionInput& in, nn::AttentionState& any) const {
  auto& state = dynamic_cast<SeaState&>(any);
  check(in.options.query_skip == state.query_skip, "sea: query_skip is ", in.options.query_skip,
        ", but the state was made for ", state.query_skip);
  return state;
}

// The next part of a prompt: rows after the tokens of the state, which see those, too.
Tensor SeaAttention::go_on(const nn::AttentionInput& in) const {
  NoGrad off;
  SeaState& state = state_of(in, *in.state);
  const Visibility visible{.first = state.length(in.slot)};
  const int64_t n = in.q.dim(2), tokens = visible.first + n;
  check(in.q.dim(0) == 1 && state.query_skip == 1, "sea: a part of a prompt is of one sequence, ",
        "with query_skip 1");
  state.extend(in.slot, in.k, in.v);
  const Estimate e = estimator_.part(tokens_of(in), state, in.slot);
  state.extend({in.slot, tokens_of(in), visible, e, in.more}, estimator_);
  auto [keys, values] = state.rows(in.slot, in.q.dtype());
  nn::AttentionInput all = in;
  all.k = keys.slice(2, 0, tokens);
  all.v = values.slice(2, 0, tokens);
  const Tensor attended = nn::masked_attention(all, select(e, in, visible, tokens).csr);
  return mix_outputs(attended, running_mean(all.v).slice(2, visible.first, n), e.gates, visible);
}

Tensor SeaAttention::step(const nn::AttentionInput& in, nn::AttentionState& any) const {
  NoGrad off;
  SeaState& state = state_of(in, any);
  state.append(in.k, in.v);
  Estimate e = estimator_.step(tokens_of(in), state);
  // One row per sequence, which sees all keys so far: it is computed as a bidirectional row.
  const Visibility visible{.causal = false, .lengths = state.lengths()};
  Mask mask = select(e, in, visible, state.keys.dim(2));
  Tensor probabilities;
  Tensor attended =
      sparse_attention(in.q, state.keys, state.values, mask.csr, in.tap ? &probabilities : nullptr);
  Tensor average = running_mean_step(state.value_sums, in.v, state.lengths());
  if (in.tap) show(in, e, mask, probabilities, per_head(average.detach()));
  return mix_outputs(attended, average, e.gates, visible);
}

namespace {
const nn::RegisterAttention<SeaAttention, SeaConfig> registration("sea", {"paper", "light"});
}

}  // namespace brine::sea
