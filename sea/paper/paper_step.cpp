// The paper's estimator for one new token of every sequence, and what its stages keep of earlier
// ones.
#include "autograd/ops.h"
#include "sea/columns/decode_state.h"
#include "sea/paper/paper_estimator.h"

namespace brine::sea {
namespace {

// x W^T + b of one token of every sequence, without a tape.
Tensor linear_step(const nn::Linear& layer, const Tensor& x) {
  return thin_linear(x, layer.weight.value, layer.bias->value);
}

struct MixtureState : StageState {
  MixtureState(Tensor& sums, Tensor& key_sums) : sums(sums), key_sums(key_sums) {}
  Tensor& sums;      // [B, G, m, 2d] sum of phi_k V_cat
  Tensor& key_sums;  // f64 [B, G, m] sum of phi_k
};

struct DecoderState : StageState {
  RowDecoder rows() const {
    RowDecoder out;
    for (const Tensor* w : windows) out.windows.push_back(*w);
    return out;
  }
  std::vector<Tensor*> windows;  // see RowDecoder
};

}  // namespace

void Performer::step(Estimate& e, const NewTokens& tokens, StageState& /*kept*/) const {
  const double eps = config_.resolved_eps();
  e.phi_q = relu_features_step(tokens.x.q, projection_.projection, eps);
  e.phi_k = relu_features_step(tokens.x.k, projection_.projection, eps);
  share(e);
}

std::unique_ptr<StageState> Mixture::make_state(SeaState& state, const nn::StateRequest& r) const {
  const int64_t positions = table().dim(0), G = shape_.groups(), d = shape_.head_size;
  check(r.capacity <= positions, "sea: a capacity of ", r.capacity,
        " tokens, but v_identity.table has ", positions, " positions");
  const int64_t m = nn::feature_count(d, config_.feature_divisor);
  Tensor& sums = state.part("performer", {r.batch, G, m, 2 * d}, r.dtype);
  return std::make_unique<MixtureState>(sums, state.part("key_sums", {r.batch, G, m}, Dtype::f64));
}

void Mixture::fill(StageState& kept, const SeaState& /*state*/, const Prompts& p) const {
  auto& mixture = static_cast<MixtureState&>(kept);
  auto part = [&](const Tensor& t) { return t.slice(0, p.first, p.x.v.dim(0)); };
  linear_attention_state(part(mixture.sums), part(mixture.key_sums), p.e.phi_k.detach(), table(),
                         p.x.v.detach(), p.visible);
}

void Mixture::step(Estimate& e, const NewTokens& tokens, StageState& kept) const {
  auto& mixture = static_cast<MixtureState&>(kept);
  e.performer_context = linear_attention_step(mixture.sums, mixture.key_sums, e.phi_q, e.phi_k,
                                              table(), tokens.x.v, tokens.at, key_eps());
  Tensor both =
      concat({e.performer_context, repeat_heads(tokens.x.v, shape_.heads / tokens.x.v.dim(1))}, -1);
  const bool token = config_.mu_scope == MuScope::token;
  if (token) both = merge_heads(both);
  const Tensor z = gelu(mu_.norm(linear_step(mu_.linear, both)));
  e.features = token ? split_heads(z, shape_.heads) : z;
}

void TokenGates::step(Estimate& e, const NewTokens& /*tokens*/, StageState& /*kept*/) const {
  e.gates = linear_step(linear_, e.features);
}

std::unique_ptr<StageState> DecodedScores::make_state(SeaState& state,
                                                      const nn::StateRequest& r) const {
  const int64_t K = decoder_.columns();
  const std::vector<nn::Conv2d*>& convolutions = decoder_.convolutions();
  auto kept = std::make_unique<DecoderState>();
  for (size_t i = 0; i < convolutions.size(); ++i) {
    const nn::Conv2dConfig& c = convolutions[i]->config;
    // The last convolution reads the upsampled image.
    const int64_t columns = i + 1 == convolutions.size() ? K : K / kWidthReduction;
    kept->windows.push_back(&state.part(
        join("window", i + 1), {r.batch, c.kernel, columns + c.kernel - 1, c.in}, r.dtype));
  }
  return kept;
}

void DecodedScores::fill(StageState& kept, const SeaState& state, const Prompts& p) const {
  const auto& decoder = static_cast<DecoderState&>(kept);
  for (int64_t b = 0; b < p.x.k.dim(0); ++b) {
    const int64_t slot = p.first + b;
    const int64_t made = (state.length(slot) + state.query_skip - 1) / state.query_skip;
    for (size_t i = 0; i < decoder.windows.size(); ++i) {
      // An image has the rows of its halo before its first row.
      const Tensor window = decoder.windows[i]->slice(0, slot, 1);
      const Tensor& image = p.e.decoder_images[i];
      const int64_t columns = image.dim(2);
      copy_into(window.slice(2, (window.dim(2) - columns) / 2, columns),
                image.slice(0, b, 1).slice(1, made - 1, window.dim(1)));
    }
  }
}

Tensor DecodedScores::step(const Tensor& /*scores*/, const Estimate& e, const NewTokens& /*tokens*/,
                           int64_t first, int64_t count, StageState& kept) const {
  return decoder_.step(linear_step(nu_, e.features.slice(0, first, count)),
                       static_cast<DecoderState&>(kept).rows().slots(first, count));
}

}  // namespace brine::sea
