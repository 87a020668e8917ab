// The estimator: from q, k, v to the compressed attention (docs/method.md section 1).
//
// Performer -> mu -> nu -> image of heads by columns -> convolutions -> scores of K columns.
#pragma once

#include <vector>

#include "nn/layers/conv.h"
#include "nn/layers/layers.h"
#include "sea/config.h"

namespace brine::sea {

// The tensors of the estimator for a batch, in the order of computation.
struct Estimate {
  Tensor phi_q, phi_k;       // [B, H, T, m] random features
  Tensor performer_context;  // C_perf [B, H, T, 2d]
  Tensor features;           // Z [B, H, T, 2d]
  Tensor scores;             // S [B, H, T, K], including the prior
  Tensor estimate;           // [B, H, T, K], rows sum to 1 over the columns that own a key
  Tensor gates;              // [B, H, T, 2] (s_prob, s_mix) before their sigmoid
  // If requested, the inputs of the decoder's convolutions: images with their halo.
  std::vector<Tensor> decoder_images;
};

class SeaState;  // decode_state.h
struct RowDecoder;

// R, a buffer. It is redrawn from the next stream of the same seed.
struct Performer : nn::Module {
  Performer(nn::Init& init, int64_t m, int64_t d);
  void redraw(uint64_t draw);

  RandomSlice slice;
  nn::Buffer& projection;  // [m, d]
};

struct IdentityTable : nn::Module {
  IdentityTable(nn::Init& init, int64_t positions, int64_t d)
      : table(parameter("table", init.normal({positions, d}, 1), false)) {}
  nn::Parameter& table;  // [positions, d]
};

struct PriorGain : nn::Module {
  PriorGain(nn::Init& init, int64_t heads)
      : gain(parameter("gain", init.full({heads}, 1), false)) {}
  nn::Parameter& gain;  // [H]
};

// LayerNorm(Linear(.)), then GELU; of one head or of all heads of a token.
struct Mu : nn::Module {
  Mu(nn::Init& init, int64_t in, int64_t out)
      : linear(child<nn::Linear>("linear", init, in, out)),
        norm(child<nn::LayerNorm>("norm", init, out)) {}
  nn::Linear& linear;
  nn::LayerNorm& norm;
};

// The decoder's convolutions: the output of nu [B, H, T, c_h W] to scores [B, H, T, K].
class MapDecoder : public nn::Module {
 public:
  MapDecoder(nn::Init& init, int64_t heads, int64_t K, const MapDecoderShape& config, bool causal);
  // lengths i64 [B] or undefined. `images`, when given, receives the input of each convolution.
  Tensor operator()(const Tensor& x, const Tensor& lengths,
                    std::vector<Tensor>* images = nullptr) const;

  // By rows, without a tape (estimator_step.cpp): x [B, H, 1, c_h W] are the rows at[b] of their
  // sequences, whose earlier rows were given to `rows` -> scores [B, H, 1, K].
  Tensor step(const Tensor& x, const RowDecoder& rows, const Tensor& at) const;

  const MapDecoderShape& config() const { return config_; }
  int64_t columns() const { return K_; }
  // All convolutions, in order.
  std::vector<nn::Conv2d*> convolutions() const {
    std::vector<nn::Conv2d*> all = convs_;
    all.push_back(last_);
    return all;
  }

 private:
  // Sequences at the same position of the stride; `fresh` = the convolutions run for it.
  Tensor step_rows(const Tensor& row, const RowDecoder& rows, bool fresh) const;

  MapDecoderShape config_;
  int64_t heads_, K_;
  nn::LayerNorm* norm_in_ = nullptr;
  std::vector<nn::Conv2d*> convs_;
  nn::Conv2d* last_ = nullptr;
  nn::LayerNorm* norm_out_ = nullptr;
};

class Estimator : public nn::Module {
  SeaConfig config_;
  nn::AttentionShape shape_;

 public:
  // Throws an Error when the settings do not fit the model.
  Estimator(nn::Init& init, const nn::AttentionShape& shape, const SeaConfig& config);

  // q, k, v [B, H, T, d] as the projections give them: q is not scaled. With query_skip f, nu and
  // the decoder run on rows 0, f, 2f... and row t takes the scores of row f floor(t / f).
  Estimate operator()(const Tensor& q, const Tensor& k, const Tensor& v, const Visibility& visible,
                      int64_t query_skip = 1, bool keep_images = false) const;

  // The same for one new token of every sequence, without a tape: q, k, v [B, H, 1, d]; the state
  // already contains the keys and values (estimator_step.cpp).
  Estimate step(const Tensor& q, const Tensor& k, const Tensor& v, SeaState& state) const;

  // The identity half of the values for a batch, [B, T, d], 0 at padding.
  Tensor identity_rows(int64_t batch, int64_t T, const Visibility& visible) const;
  // Called before an optimizer step: draws new random features when they are due.
  void on_step(int64_t steps_done);

  // Single stages, for callers that process a sequence row by row: phi of x, and Z of C_perf and v.
  Tensor random_features(const Tensor& x, const Visibility& visible, FeatureSide side) const;
  Tensor mixed(const Tensor& performer_context, const Tensor& v) const;

  const SeaConfig& config() const { return config_; }
  // Added to every sum of key features in a denominator: the stabiliser of ReLU features in the
  // released code (docs/method.md section 1.2); softmax features have their own.
  double key_eps() const { return config_.softmax_features() ? 0 : 1e-6; }
  Performer& performer;
  IdentityTable* identity;  // null when bidirectional
  Mu& mu;
  nn::Linear& nu;
  MapDecoder& decoder;
  nn::Linear& gates;  // (s_prob, s_mix) before their sigmoid; files name its tensors "scaler"
  PriorGain* prior;   // null when there is none

 private:
  void step_scores(const Estimate& e, SeaState& state, int64_t first, int64_t count) const;
};

// V_I of encoders, [B, T, d]: the d x d identity resampled to each sequence's own length, bilinear
// with aligned corners; 0 at padding.
Tensor resampled_identity(int64_t batch, int64_t T, int64_t d, const Tensor& lengths, Dtype dtype,
                          Device device);

}  // namespace brine::sea
