// The schema, the presets and the checks of SEA's settings.
#include "sea/base/config.h"

namespace brine::sea {
namespace {

// The keys that a preset decides.
struct PresetKeys {
  DecoderPreset decoder;
  Gates gates;
  Prior prior;
  bool pooled_prior;
  int64_t prior_units, columns;
  double gate_bias;
};

PresetKeys keys_of(Preset preset) {
  switch (preset) {
    case Preset::light:
      return {DecoderPreset::none, Gates::head, Prior::learned, true, 4, 256, 4};
    case Preset::lean:
      return {DecoderPreset::lean, Gates::token, Prior::performer, false, 0, 64, 0};
    case Preset::paper:
      break;
  }
  return {DecoderPreset::paper, Gates::token, Prior::none, false, 0, 64, 0};
}

std::string text_of(bool value) { return value ? "true" : "false"; }
template <class T>
std::string text_of(T value) {
  return join(value);
}
template <class E, size_t N>
std::string text_of(E value, const data::Named<E> (&names)[N]) {
  return data::name_of(value, names);
}

// A default, and what the presets make of it: "64, light 256". `names`: of an enum.
template <class T, class... Names>
std::string by_preset(const T& initial, T PresetKeys::*key, const Names&... names) {
  std::string out = text_of(initial, names...);
  for (const data::Named<Preset>& preset : kPresets) {
    const T value = keys_of(preset.value).*key;
    if (value != initial) out += join(", ", preset.name, " ", text_of(value, names...));
  }
  return out;
}

}  // namespace

void SeaConfig::apply(Preset named) {
  const PresetKeys keys = keys_of(named);
  auto take = [this](const char* key, auto& to, auto value) {
    if (!given.count(key)) to = value;
  };
  take("decoder", decoder, keys.decoder);
  take("gates", gates, keys.gates);
  take("prior", prior, keys.prior);
  take("pooled_prior", pooled_prior, keys.pooled_prior);
  take("prior_units", prior_units, keys.prior_units);
  take("columns", columns, keys.columns);
  take("gate_bias", gate_bias, keys.gate_bias);
  preset = named;
}

void SeaConfig::describe(data::Schema& s) {
  s.collect("", given);
  s.choice("preset", preset, kPresets,
           "Defaults of other keys (docs/method.md); distill takes light",
           {.unset = "each key has its own default", .then = [this] { apply(*preset); }});
  s.field("k", keys, "Keys kept per query and head", {.min = 1});
  s.field("columns", columns, "Columns of the estimate",
          {.min = 1, .shown = by_preset(columns, &PresetKeys::columns)});
  s.choice("mode", mode, kModes, "Which rows share one budget of columns");
  s.choice("decoder", decoder, kDecoderPresets,
           "Preset of the convolutional decoder; none: a table for each head",
           {.shown = by_preset(decoder, &PresetKeys::decoder, kDecoderPresets)});
  const std::string from = "; 0 = from the decoder's preset";
  s.field("width_reduction", width_reduction, "Columns of K per column of the image" + from,
          {.min = 0});
  s.field("channel_expansion", channel_expansion, "Channels of the image per head" + from,
          {.min = 0});
  s.field("token_stride", token_stride, "Stride of the first convolution along tokens" + from,
          {.min = 0});
  s.field("depth", depth, "3x3 convolutions before the upsampling" + from, {.min = 0});
  s.field("dilation", dilation, "Dilation of these convolutions" + from, {.min = 0});
  s.field("last_kernel", last_kernel, "Kernel of the last convolution, 1 or 3" + from,
          {.min = 0, .max = 3});
  s.choice("decoder_norm", decoder_norm, kDecoderNorms,
           "LayerNorm over columns before and after the decoder");
  s.choice("mu_scope", mu_scope, kMuScopes, "mu sees one head or all heads of a token");
  s.choice("prior", prior, kPriors,
           "Features whose kernel attention to a column is added to its score",
           {.shown = by_preset(prior, &PresetKeys::prior, kPriors)});
  s.field("prior_features", prior_features, "Features of the learned prior", {.min = 1});
  s.field("pooled_prior", pooled_prior,
          "Adds each query's product with the mean key of a column to its score",
          {.shown = by_preset(pooled_prior, &PresetKeys::pooled_prior)});
  s.field("prior_units", prior_units,
          "Least units of a column, whose borders fall on units; 0 = single keys",
          {.min = 0, .max = 65536, .shown = by_preset(prior_units, &PresetKeys::prior_units)});
  s.field("pooled", pooled,
          "Share of mean keys' scores in the choice of columns, next to the estimate",
          {.min = 0, .max = 1});
  s.field("oversample", oversample,
          "Candidates for each kept key: the keys with the largest scores among them stay",
          {.min = 1});
  s.choice("gates", gates, kGates, "Gates of the output: of every token, or constant per head",
           {.shown = by_preset(gates, &PresetKeys::gates, kGates)});
  s.choice("features", features, kFeatures, "Random features; softmax is for encoders only");
  s.field("feature_eps", feature_eps, "Floor of the features; 0 = 1e-3 (relu) or 1e-4 (softmax)",
          {.min = 0});
  s.field("gate_bias", gate_bias, "Both gates of the output start at the sigmoid of this",
          {.shown = by_preset(gate_bias, &PresetKeys::gate_bias)});
  s.field("feature_divisor", feature_divisor, "Features m = d ln d / feature_divisor",
          {.above = 0});
  s.field("max_positions", max_positions,
          "Rows of the learned identity table (causal); 0 = the model's positions", {.min = 0});
  s.field("redraw_interval", redraw_interval,
          "Optimizer steps between redraws of the random features; 0 = never", {.min = 0});
  s.choice("identity_interpolation", identity_interpolation, kInterpolations,
           "How an encoder resamples the identity V_I to its tokens; nearest is the paper's");
  s.choice("widen", widen, kWidens,
           "What L_approx widens to keys: scores, or probabilities (the paper's)");
}

MapDecoderShape SeaConfig::resolved_decoder(bool causal) const {
  MapDecoderShape d;
  if (decoder == DecoderPreset::lean) {
    d = {.width_reduction = 4, .channel_expansion = 2, .dilation = 2, .last_kernel = 1};
  } else if (!causal) {
    d.norm = false;
  }
  auto take = [](int64_t& to, int64_t from) {
    if (from > 0) to = from;
  };
  take(d.width_reduction, width_reduction);
  take(d.channel_expansion, channel_expansion);
  if (!causal) d.token_stride = d.width_reduction;
  take(d.token_stride, token_stride);
  take(d.depth, depth);
  take(d.dilation, dilation);
  take(d.last_kernel, last_kernel);
  if (decoder_norm != DecoderNorm::preset) d.norm = decoder_norm == DecoderNorm::on;
  return d;
}

void SeaConfig::validate(const nn::AttentionShape& shape) const {
  check(keys >= 1, "sea: k is ", keys, ", must be at least 1");
  check(columns >= 1, "sea: columns is ", columns, ", must be at least 1");
  check(!performs() || feature_divisor > 0, "sea: feature_divisor is ", feature_divisor,
        ", must be above 0");
  check(!performs() || feature_eps >= 0, "sea: feature_eps is ", feature_eps,
        ", must not be negative");
  if (shape.causal) {
    check(mode != SelectMode::per_head && mode != SelectMode::per_batch, "sea: mode ",
          name_of(mode),
          " depends on later positions; a causal model takes per-query or causal-per-batch");
    check(!performs() || !softmax_features(),
          "sea: softmax features see future keys; a causal model takes features = relu");
    check(identity_interpolation == Interpolation::bilinear,
          "sea: identity_interpolation = nearest resamples the identity of an encoder; a causal "
          "model learns V_I");
  } else {
    check(decoder != DecoderPreset::lean,
          "sea: the lean decoder is for causal models; encoders take paper");
  }
  check(prior != Prior::learned || prior_features >= 1, "sea: prior_features is ", prior_features,
        ", must be at least 1");
  check(prior_units >= 0, "sea: prior_units is ", prior_units, ", must not be negative");
  check(pooled >= 0 && pooled <= 1, "sea: pooled is ", pooled, ", must be in [0, 1]");
  check(oversample >= 1, "sea: oversample is ", oversample, ", must be at least 1");
  check(mixes() || identity_interpolation == Interpolation::bilinear,
        "sea: identity_interpolation = nearest has no use without V_I: decoder is none and gates "
        "is head");
  if (!decodes()) return;
  const MapDecoderShape d = resolved_decoder(shape.causal);
  check(d.width_reduction >= 1 && d.channel_expansion >= 1 && d.token_stride >= 1 && d.depth >= 1 &&
            d.dilation >= 1,
        "sea: the decoder's sizes must be at least 1");
  check(d.last_kernel == 1 || d.last_kernel == 3, "sea: last_kernel is ", d.last_kernel,
        ", must be 1 or 3");
  check(columns % d.width_reduction == 0, "sea: columns = ", columns,
        " is not a multiple of width_reduction = ", d.width_reduction);
  check(!d.norm || columns / d.width_reduction >= 3,
        "sea: columns / width_reduction = ", columns / d.width_reduction,
        " columns are too few for the decoder's LayerNorm, which needs at least 3");
}

}  // namespace brine::sea
