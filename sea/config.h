// The settings of SEA (`[attention]` of a config file), and what a preset makes of them.
#pragma once

#include <string>

#include "data/config/schema.h"
#include "nn/attention/attention.h"
#include "tensor/csr.h"

namespace brine::sea {

// The shape of the convolutional decoder, complete. Words as in method 1.5.
struct Decoder {
  int64_t width_reduction = 2;    // c_s: the image has K / c_s columns
  int64_t channel_expansion = 4;  // c_h: channels per head
  int64_t token_stride = 1;       // of the first convolution
  int64_t depth = 2;              // 3x3 convolutions before the upsampling
  int64_t dilation = 1;           // of these, on both axes
  int64_t last_kernel = 3;        // 1 or 3; 1 runs before the upsampling
  bool norm = true;               // LayerNorm over columns before and after
};

struct SeaConfig {
  int64_t k = 64;  // keys kept per query and head
  int64_t K = 64;  // columns of the estimate
  std::string mode = "causal-per-batch";
  std::string decoder = "paper";  // a preset; the settings below override it when not 0
  int64_t width_reduction = 0, channel_expansion = 0, token_stride = 0, depth = 0, dilation = 0,
          last_kernel = 0;
  std::string decoder_norm = "preset";
  std::string mu_scope = "head";
  std::string prior = "performer";
  std::string features = "relu";  // or softmax (encoders only)
  double feature_eps = 0;         // 0: 1e-3 (relu), 1e-4 (softmax)
  double scaler_bias = 0;         // both gates start at its sigmoid
  double feature_divisor = 4;
  int64_t max_positions = 0;  // rows of the identity table; 0: as many as the model's positions
  int64_t redraw_interval = 0;

  void describe(data::Schema& s);

  // Throws Error naming the setting when these settings, or this model, cannot be.
  void validate(const nn::AttentionShape& shape) const;
  Decoder resolved_decoder(bool causal) const;
  SelectConfig selection() const { return {.k = k, .mode = parse_select_mode(mode)}; }
  bool softmax_features() const { return features == "softmax"; }
  double resolved_eps() const {
    return feature_eps > 0 ? feature_eps : (softmax_features() ? 1e-4 : 1e-3);
  }
};

}  // namespace brine::sea
