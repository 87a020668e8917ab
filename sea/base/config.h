// The settings of SEA (`[attention]` of a config file), and what a preset makes of them.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "data/config/schema.h"
#include "nn/attention/attention.h"
#include "tensor/mask/csr.h"

namespace brine::sea {

// The convolutional decoder of the map (docs/method.md section 1.5).
inline constexpr int64_t kWidthReduction = 2;    // c_s: the image has K / c_s columns
inline constexpr int64_t kChannelExpansion = 4;  // c_h: channels per head

enum class Preset : uint8_t { paper, light };        // of the whole block
enum class DecoderPreset : uint8_t { paper, none };  // none: a table instead of a decoder
enum class MuScope : uint8_t { head, token };        // mu sees one head or all heads of a token
enum class Prior : uint8_t { performer, learned, none };   // whose features give a column's share
enum class Gates : uint8_t { token, head };                // of every token, or two numbers a head
enum class Features : uint8_t { relu, softmax };           // softmax only for encoders
enum class Interpolation : uint8_t { bilinear, nearest };  // of the identity; nearest: the paper's
enum class Widen : uint8_t { scores, probabilities };      // to keys, in L_approx

inline constexpr data::Named<Preset> kPresets[] = {{Preset::paper, "paper"},
                                                   {Preset::light, "light"}};
inline constexpr data::Named<DecoderPreset> kDecoderPresets[] = {{DecoderPreset::paper, "paper"},
                                                                 {DecoderPreset::none, "none"}};
inline constexpr data::Named<MuScope> kMuScopes[] = {{MuScope::head, "head"},
                                                     {MuScope::token, "token"}};
inline constexpr data::Named<Prior> kPriors[] = {
    {Prior::performer, "performer"}, {Prior::learned, "learned"}, {Prior::none, "none"}};
inline constexpr data::Named<Gates> kGates[] = {{Gates::token, "token"}, {Gates::head, "head"}};
inline constexpr data::Named<Features> kFeatures[] = {{Features::relu, "relu"},
                                                      {Features::softmax, "softmax"}};
inline constexpr data::Named<Interpolation> kInterpolations[] = {
    {Interpolation::bilinear, "bilinear"}, {Interpolation::nearest, "nearest"}};
inline constexpr data::Named<Widen> kWidens[] = {{Widen::scores, "scores"},
                                                 {Widen::probabilities, "probabilities"}};

struct SeaConfig {
  int64_t keys = 64;     // k: kept per query and head
  int64_t columns = 64;  // K: of the estimate
  SelectMode mode = SelectMode::causal_per_batch;
  DecoderPreset decoder = DecoderPreset::paper;
  MuScope mu_scope = MuScope::head;
  Prior prior = Prior::performer;
  int64_t prior_features = 64;  // m' of the learned prior
  bool pooled_prior = false;    // scores of mean keys are added, with a gain for each head
  int64_t prior_units = 0;      // least units of a column whose sums both take; 0: single keys
  Gates gates = Gates::token;
  Features features = Features::relu;
  double feature_eps = 0;  // 0: 1e-3 (relu), 1e-4 (softmax)
  double gate_bias = 0;    // both gates start at its sigmoid
  double feature_divisor = 4;
  Interpolation identity_interpolation = Interpolation::bilinear;  // V_I of encoders
  Widen widen = Widen::scores;                                     // docs/method.md section 4.1
  std::optional<Preset> preset = std::nullopt;                     // the last one that was applied
  std::set<std::string> given = {};  // keys that were set through a schema

  void describe(data::Schema& s);
  // Sets the keys of a preset, except those given.
  void apply(Preset named);

  // Throws an Error that names the setting when these settings, or this model, are not valid.
  // Settings that have no effect are not checked.
  void validate(const nn::AttentionShape& shape) const;
  bool decodes() const { return decoder != DecoderPreset::none; }
  // Has Z (docs/method.md section 1.3): the decoder or the gates are computed from it.
  bool mixes() const { return decodes() || gates == Gates::token; }
  bool has_performer() const {
    return mixes() || prior == Prior::performer;
  }  // the Performer's features
  // The least share of a column in the prior.
  double min_share() const { return prior == Prior::learned ? 1e-7 : 0; }

  nn::MaskSettings mask_settings() const { return {.k = keys, .columns = columns, .mode = mode}; }
  SelectConfig selection() const { return {.k = keys, .mode = mode}; }
  bool softmax_features() const { return features == Features::softmax; }
  double resolved_eps() const {
    return feature_eps > 0 ? feature_eps : (softmax_features() ? 1e-4 : 1e-3);
  }
};

}  // namespace brine::sea
