// The paper's estimator and its convolutional decoder, over whole sequences and token by token.
#include "sea/paper/paper_estimator.h"

#include "autograd/ops.h"
#include "sea/columns/decode_state.h"
#include "tensor/meter/cost_meter.h"

namespace brine::sea {

namespace {

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

// V_I of every token [B, T, d], 0 at padding.
Tensor rows_of_table(const Tensor& table, const Pass& pass) {
  const Tensor all = table.detach();
  const int64_t B = pass.batch(), T = pass.tokens();
  check(all.dim(0) >= T, "sea: ", T, " tokens, but v_identity.table has ", all.dim(0),
        " positions");
  Tensor rows = Tensor::zeros({B, T, all.dim(1)}, all.dtype(), all.device());
  const RowWidths widths(pass.visible, T);
  for (int64_t b = 0; b < B; ++b) {
    const int64_t n = widths.valid(b);
    if (n > 0) assign(rows.select(0, b).slice(0, 0, n), all.slice(0, 0, n));
  }
  return rows;
}

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
  std::vector<Tensor*> windows;  // as in MapDecoder::step()
};

}  // namespace

Performer::Performer(nn::Init& init, const nn::AttentionShape& shape, const SeaConfig& config)
    : config_(config),
      projection_(child<nn::RandomProjection>(
          "performer", init, nn::feature_count(shape.head_size, config.feature_divisor),
          shape.head_size)) {}

Tensor Performer::features(const Tensor& x, const Visibility& visible, FeatureSide side) const {
  const double eps = config_.resolved_eps();
  if (!config_.softmax_features()) {
    return relu_features(x, projection_.projection, eps, visible.lengths);
  }
  return softmax_features(x, projection_.projection, eps, visible.lengths, side);
}

void Performer::share(Estimate& e) const {
  if (config_.prior != Prior::performer) return;
  e.psi_q = e.phi_q;
  e.psi_k = e.phi_k;
}

void Performer::run(Estimate& e, const Pass& pass) const {
  const CostScope part("performer");
  e.phi_q = features(pass.x.q, pass.visible, FeatureSide::queries);
  e.phi_k = features(pass.x.k, pass.visible, FeatureSide::keys);
  share(e);
}

Mixture::Mixture(nn::Init& init, const nn::AttentionShape& shape, const SeaConfig& config)
    : config_(config),
      shape_(shape),
      identity_(child<Identity>("v_identity", init, shape)),
      mu_(child<Mu>("mu", init, 3 * shape.head_size * mu_width(config, shape.heads),
                    2 * shape.head_size * mu_width(config, shape.heads))) {}

// The stabiliser of ReLU features in the released code (docs/method.md section 1.2), added to every
// sum of key features in a denominator; softmax features have another.
double Mixture::key_eps() const { return config_.softmax_features() ? 0 : 1e-6; }

void Mixture::run(Estimate& e, const Pass& pass) const {
  const Tensor identity =
      identity_.table
          ? Tensor(*identity_.table)
          : resampled_identity({pass.batch(), pass.tokens(), pass.x.v.dim(3)},
                               config_.identity_interpolation == Interpolation::nearest,
                               pass.visible.lengths, pass.x.v.dtype(), pass.x.v.device());
  {
    const CostScope part("performer");
    e.performer_context =
        linear_attention(e.phi_q, e.phi_k, identity, pass.x.v, pass.visible, key_eps());
  }
  const CostScope part("mu, nu");
  if (config_.mu_scope == MuScope::token) {
    const Tensor v = repeat_heads(pass.x.v, shape_.heads / pass.x.v.dim(1));
    const Tensor all = merge_heads(concat({e.performer_context, v}, -1));  // [B, T, H 3d]
    e.features = split_heads(gelu(mu_.norm(mu_.linear(all))), shape_.heads);
  } else {
    e.features = gelu(mu_.norm(
        linear_pair(e.performer_context, pass.x.v, mu_.linear.weight, mu_.linear.bias->value)));
  }
  if (pass.wanted != Wanted::estimate) {
    e.identity_rows = identity_.table ? rows_of_table(identity, pass) : identity;
  }
}

TokenGates::TokenGates(nn::Init& init, int64_t d, double start)
    : linear_(child<nn::Linear>("scaler", init, 2 * d, 2)) {
  linear_.bias->value = init.full({2}, start);
}

void TokenGates::run(Estimate& e, const Pass& /*pass*/) const {
  const CostScope part("gates");
  e.gates = linear_(e.features);
}

DecodedScores::DecodedScores(nn::Init& init, const nn::AttentionShape& shape,
                             const SeaConfig& config)
    : nu_(child<nn::Linear>("nu", init, 2 * shape.head_size,
                            kChannelExpansion * config.columns / kWidthReduction)),
      decoder_(child<MapDecoder>("decoder", init, shape.heads, config.columns, shape.causal)) {}

Tensor DecodedScores::run(const Tensor& /*scores*/, Estimate& e, const Pass& pass) const {
  Tensor rows;
  {
    const CostScope part("mu, nu");
    rows = nu_(pass.query_skip == 1 ? e.features : every_nth_row(e.features, pass.query_skip));
  }
  const CostScope part("decoder");
  return decoder_(rows, skipped_lengths(pass.visible.lengths, pass.query_skip),
                  pass.wanted == Wanted::images ? &e.decoder_images : nullptr);
}

// Parameters have the order of their creation, stages that of their lists.
PaperEstimator::PaperEstimator(nn::Init& init, const nn::AttentionShape& shape,
                               const SeaConfig& config)
    : Estimator(shape, config) {
  const int64_t d = shape.head_size;
  if (config.gates == Gates::head) token_stage<HeadGates>("", init, shape.heads, config.gate_bias);
  if (config.has_performer()) token_stage<Performer>("", init, shape, config);
  if (config.mixes()) token_stage<Mixture>("", init, shape, config);
  if (config.decodes()) {
    score_stage<DecodedScores>("", init, shape, config);
  } else {
    score_stage<TableScores>("decoder", init, shape.heads, config.columns);
  }
  if (config.gates == Gates::token) token_stage<TokenGates>("", init, d, config.gate_bias);
  if (config.prior != Prior::none) {
    score_stage<ShareScores>("prior", init, shape, config,
                             config.prior == Prior::learned
                                 ? config.prior_features
                                 : nn::feature_count(d, config.feature_divisor));
  }
  if (config.pooled_prior) score_stage<MeanKeyScores>("prior", init, shape, config);
  if (config.prior == Prior::learned) {
    token_stage<LearnedFeatures>("prior", init, shape, config.prior_features);
  }
}

std::unique_ptr<Estimator> make_estimator(nn::Init& init, const nn::AttentionShape& shape,
                                          const SeaConfig& config) {
  config.validate(shape);
  if (LightEstimator::fits(config)) return std::make_unique<LightEstimator>(init, shape, config);
  return std::make_unique<PaperEstimator>(init, shape, config);
}

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
  std::vector<Tensor> windows;
  for (const Tensor* w : static_cast<DecoderState&>(kept).windows)
    windows.push_back(w->slice(0, first, count));
  return decoder_.step(linear_step(nu_, e.features.slice(0, first, count)), windows);
}

namespace {

constexpr int64_t kConvolutions = 2;  // before the upsampling

}  // namespace

MapDecoder::MapDecoder(nn::Init& init, int64_t heads, int64_t K, bool causal)
    : heads_(heads), K_(K), stride_(causal ? 1 : kWidthReduction) {
  const int64_t channels = heads * kChannelExpansion;
  if (causal) norms_.push_back(&child<nn::LayerNorm>("norm_in", init, K / kWidthReduction));
  for (int64_t i = 1; i <= kConvolutions; ++i) {
    convs_.push_back(&child<nn::Conv2d>(
        join("conv", i), init,
        nn::Conv2dConfig{
            .in = channels, .out = channels, .stride = i == 1 ? stride_ : 1, .causal = causal}));
  }
  convs_.push_back(&child<nn::Conv2d>(
      "conv_out", init,
      nn::Conv2dConfig{.in = channels, .out = heads, .causal = causal, .bias = false}));
  // With a gain of 1 the first estimates would be far from uniform.
  if (causal) norms_.push_back(&child<nn::LayerNorm>("norm_out", init, K, 1e-5, 0.1));
}

Tensor MapDecoder::normed(const Tensor& x) const {
  if (norms_.empty()) return x;
  const Shape split{x.dim(0), heads_, x.dim(2), kChannelExpansion, K_ / kWidthReduction};
  return reshape((*norms_[0])(reshape(x, split)), x.shape());
}

Tensor MapDecoder::operator()(const Tensor& x, const Tensor& lengths,
                              std::vector<Tensor>* images) const {
  auto show = [images](const Tensor& image) {
    if (images) images->push_back(image.detach());
  };
  Tensor image = image_from_heads(normed(x), K_ / kWidthReduction, convs_[0]->halo(), lengths);
  for (size_t i = 0; i < kConvolutions; ++i) {
    show(image);
    // The last convolution reads another image.
    const Halo next = i + 1 < kConvolutions ? convs_[i + 1]->halo() : Halo{};
    image = convs_[i]->of_padded(image, {.relu = true,
                                         .halo_before = next.before,
                                         .halo_after = next.after,
                                         .lengths = lengths,
                                         .row_stride = stride_});
  }
  const nn::Conv2d& last = *convs_.back();
  const Halo full = last.halo();
  image = upsample(image, {.tokens = x.dim(2),
                           .columns = K_,
                           .stride = stride_,
                           .halo_before = full.before,
                           .halo_after = full.after,
                           .lengths = lengths});
  show(image);
  const Tensor scores = permute(last.of_padded(image, {}), {0, 3, 1, 2});  // [B, H, T, K]
  return norms_.empty() ? scores : (*norms_[1])(scores);
}

Tensor MapDecoder::step(const Tensor& x, const std::vector<Tensor>& windows) const {
  const int64_t B = x.dim(0);
  const size_t last = convs_.size() - 1;
  // Of the last rows of image i, of which `row` [B, columns, channels] is the newest.
  auto convolved = [&](size_t i, const Tensor& row) {
    push_row(windows[i], row, (windows[i].dim(2) - row.dim(1)) / 2);
    const nn::Conv2d& conv = *convs_[i];
    return convolve_row(windows[i], conv.weight.value, conv.bias ? conv.bias->value : Tensor(),
                        {.relu = i != last});
  };
  auto row_of = [B](const Tensor& image) { return image.view({B, image.dim(2), image.dim(3)}); };
  auto image_of = [B](const Tensor& row) { return row.view({B, 1, row.dim(1), row.dim(2)}); };
  Tensor row = row_of(image_from_heads(normed(x), K_ / kWidthReduction, {}, Tensor()));
  for (size_t i = 0; i < last; ++i) row = convolved(i, row);
  row = row_of(upsample(image_of(row), {.tokens = 1, .columns = K_}));
  return (*norms_[1])(permute(image_of(convolved(last, row)), {0, 3, 1, 2}));
}

}  // namespace brine::sea
