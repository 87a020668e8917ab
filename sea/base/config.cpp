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
  s.group("Kept keys");
  s.field("k", keys, "Keys kept per query and head", {.min = 1});
  s.choice("preset", preset, kPresets,
           "Defaults of other keys (docs/method.md); distill takes light",
           {.unset = "each key has its own default", .then = [this] { apply(*preset); }});
  s.field("columns", columns, "Columns of the estimate",
          {.min = 1, .shown = by_preset(columns, &PresetKeys::columns)});
  s.choice("mode", mode, nn::kSelectModes, "Which rows share one budget of columns");
  s.group("The estimate of the attention");
  s.choice("decoder", decoder, kDecoderPresets,
           "Convolutional decoder of the scores; none: a table for each head",
           {.shown = by_preset(decoder, &PresetKeys::decoder, kDecoderPresets)});
  s.choice("mu_scope", mu_scope, kMuScopes, "mu sees one head or all heads of a token");
  s.choice("features", features, kFeatures, "Random features; softmax is for encoders only");
  s.field("feature_divisor", feature_divisor, "Features m = d ln d / feature_divisor",
          {.above = 0});
  s.field("feature_eps", feature_eps, "Floor of the features; 0 = 1e-3 (relu) or 1e-4 (softmax)",
          {.min = 0});
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
  s.group("The output");
  s.choice("gates", gates, kGates, "Gates of the output: of every token, or constant per head",
           {.shown = by_preset(gates, &PresetKeys::gates, kGates)});
  s.field("gate_bias", gate_bias, "Both gates of the output start at the sigmoid of this",
          {.shown = by_preset(gate_bias, &PresetKeys::gate_bias)});
  s.choice("widen", widen, kWidens,
           "What L_approx widens to keys: scores, or probabilities (the paper's)");
  s.choice("identity_interpolation", identity_interpolation, kInterpolations,
           "How an encoder resamples the identity V_I to its tokens; nearest is the paper's");
  // Values in files of earlier versions. 0 was "from the decoder's preset".
  s.fixed("width_reduction", {"2", "0"}).fixed("channel_expansion", {"4", "0"});
  s.fixed("token_stride", {"0"}).fixed("depth", {"2", "0"}).fixed("dilation", {"1", "0"});
  s.fixed("last_kernel", {"3", "0"}).fixed("decoder_norm", {"\"preset\""});
  s.fixed("max_positions", {"0"}).fixed("redraw_interval", {"0"});
  s.fixed("pooled", {"0.0", "0"}).fixed("oversample", {"1"});
}

void SeaConfig::validate(const nn::AttentionShape& shape) const {
  check(keys >= 1, "sea: k is ", keys, ", must be at least 1");
  check(columns >= 1, "sea: columns is ", columns, ", must be at least 1");
  check(!has_performer() || feature_divisor > 0, "sea: feature_divisor is ", feature_divisor,
        ", must be above 0");
  check(!has_performer() || feature_eps >= 0, "sea: feature_eps is ", feature_eps,
        ", must not be negative");
  if (shape.causal) {
    check(mode != SelectMode::per_head && mode != SelectMode::per_batch, "sea: mode ",
          name_of(mode),
          " depends on later positions; a causal model takes per-query or causal-per-batch");
    check(!has_performer() || !softmax_features(),
          "sea: softmax features see future keys; a causal model takes features = relu");
    check(identity_interpolation == Interpolation::bilinear,
          "sea: identity_interpolation = nearest resamples the identity of an encoder; a causal "
          "model learns V_I");
  }
  check(prior != Prior::learned || prior_features >= 1, "sea: prior_features is ", prior_features,
        ", must be at least 1");
  check(prior_units >= 0, "sea: prior_units is ", prior_units, ", must not be negative");
  check(mixes() || identity_interpolation == Interpolation::bilinear,
        "sea: identity_interpolation = nearest has no use without V_I: decoder is none and gates "
        "is head");
  if (!decodes()) return;
  check(columns % kWidthReduction == 0, "sea: columns = ", columns, " is not a multiple of ",
        kWidthReduction);
  check(!shape.causal || columns / kWidthReduction >= 3, "sea: columns / ", kWidthReduction, " = ",
        columns / kWidthReduction,
        " columns are too few for the decoder's LayerNorm, which needs at least 3");
}

}  // namespace brine::sea
