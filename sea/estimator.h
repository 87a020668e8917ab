// The estimator: from q, k, v to the compressed attention (docs/method.md section 1).
//
// Performer -> mu -> nu -> image of heads by columns -> convolutions -> scores of K columns, to
// which the priors are added. The light block has the priors alone.
#pragma once

#include <vector>

#include "nn/layers/conv.h"
#include "nn/layers/layers.h"
#include "nn/layers/random_features.h"
#include "sea/config.h"

namespace brine::sea {

// Queries and keys of a layer, as the projections and the positions give them: q is not scaled.
struct LayerTokens {
  Tensor q;     // [B, H, T, d]
  Tensor k, v;  // [B, G, T, d]; head h has the group h G / H
  // q and k before the rotation of rotary positions, undefined under other positions.
  Tensor q_content = {}, k_content = {};
};

// The tensors of the estimator for a batch, in the order of computation; those of stages that the
// settings leave out are undefined.
struct Estimate {
  Tensor phi_q, phi_k;       // [B, H, T, m], [B, G, T, m] random features; on a GPU m filled up
  Tensor performer_context;  // C_perf [B, H, T, 2d]
  Tensor features;           // Z [B, H, T, 2d]
  Tensor psi_q, psi_k;       // [B, H, T, m], [B, G, T, m] features of the prior
  Tensor scores;             // S [B, H, T, K], including the priors
  Tensor estimate;           // [B, H, T, K], rows sum to 1 over the columns that own a key
  Tensor pooled;             // [B, H, T, K] scores of mean keys, if they choose columns
  Tensor order;              // [B, H, T, K] by which columns are selected
  Tensor gates;              // [B, H, T, 2] (s_prob, s_mix) before their sigmoid
  // If requested, the inputs of the decoder's convolutions: images with their halo.
  std::vector<Tensor> decoder_images;
};

class SeaState;  // decode_state.h
struct RowDecoder;

struct IdentityTable : nn::Module {
  IdentityTable(nn::Init& init, int64_t positions, int64_t d)
      : table(parameter("table", init.normal({positions, d}, 1), false)) {}
  nn::Parameter& table;  // [positions, d]
};

// Features of the learned prior: exp(d^-1/4 A x + U content + b), of each head of x.
struct PriorFeatures : nn::Module {
  // `projection` [m, d]: A starts at half of it, in every head.
  PriorFeatures(nn::Init& init, int64_t heads, const Tensor& projection, bool rotary);
  Tensor operator()(const Tensor& x, const Tensor& content, const Tensor& lengths) const;

  nn::Parameter& weight;   // A [heads, m, d]
  nn::Parameter& bias;     // b [heads, m]
  nn::Parameter* content;  // U [heads, m, d]; null without rotary positions
};

// What is added to the scores of columns (docs/method.md section 1.6).
struct ColumnPrior : nn::Module {
  ColumnPrior(nn::Init& init, const nn::AttentionShape& shape, const SeaConfig& config);

  nn::Parameter* gain;                             // [H] of the shares of linear attention, or null
  nn::Parameter* pooled_gain;                      // [H] of the scores of mean keys, or null
  PriorFeatures *query = nullptr, *key = nullptr;  // of the learned prior
};

// The scores of every row where there is no decoder.
struct ScoreTable : nn::Module {
  ScoreTable(nn::Init& init, int64_t heads, int64_t K)
      : bias(parameter("bias", init.zeros({heads, K}), false)) {}
  nn::Parameter& bias;  // [H, K]
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

// What a caller reads: the estimate, the features of keys and the gates; or the scores, too; or the
// images of the decoder, too. What is not wanted may be undefined.
enum class Wanted : uint8_t { estimate, scores, images };

class Estimator : public nn::Module {
  SeaConfig config_;
  nn::AttentionShape shape_;

 public:
  // Throws an Error when the settings do not fit the model.
  Estimator(nn::Init& init, const nn::AttentionShape& shape, const SeaConfig& config);

  // With query_skip f, nu and the decoder run on rows 0, f, 2f... and row t takes the scores of row
  // f floor(t / f).
  Estimate operator()(const LayerTokens& x, const Visibility& visible, int64_t query_skip = 1,
                      Wanted wanted = Wanted::scores) const;

  // The same for one new token of every sequence, without a tape, T = 1; the state already contains
  // the keys and values (estimator_step.cpp).
  Estimate step(const LayerTokens& x, SeaState& state) const;

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
  // The least share of a column in the prior.
  double least_share() const { return config_.prior == Prior::learned ? 1e-7 : 0; }
  // Null where the settings leave a stage out.
  nn::RandomProjection* performer = nullptr;
  IdentityTable* identity = nullptr;  // causal only
  Mu* mu = nullptr;
  nn::Linear* nu = nullptr;
  MapDecoder* decoder = nullptr;
  ScoreTable* table = nullptr;  // without a decoder
  nn::Linear* gates = nullptr;  // (s_prob, s_mix) before their sigmoid, from Z; files: "scaler"
  nn::Parameter* head_gates = nullptr;  // [H, 2] the same of every token
  ColumnPrior* prior = nullptr;

 private:
  Tensor per_head(const Tensor& x) const;
  bool is_one_pass(int64_t query_skip) const;
  void mix(Estimate& e, const LayerTokens& x, const Visibility& visible) const;
  void take_features(Estimate& e, const LayerTokens& x, const Visibility& visible) const;
  Tensor gates_of(const Estimate& e, int64_t batch, int64_t rows) const;
  void mix_step(Estimate& e, const LayerTokens& x, SeaState& state, const Tensor& at) const;
  void step_scores(const Estimate& e, const LayerTokens& x, SeaState& state, int64_t first,
                   int64_t count) const;
};

// (1 - share) a + share b, without a gradient.
Tensor blend(const Tensor& a, const Tensor& b, double share);

// V_I of encoders, [B, T, d]: the d x d identity resampled to each sequence's own length L, 0 at
// padding. bilinear: with aligned corners; nearest: row floor(p d / L) (docs/method.md
// section 1.1).
Tensor resampled_identity(const Shape& shape, Interpolation interpolation, const Tensor& lengths,
                          Dtype dtype, Device device);

}  // namespace brine::sea
