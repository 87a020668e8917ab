// The stages of the paper's estimator: the Performer's features and attention, mu (Z), nu and the
// convolutional decoder, gates of every token.
#pragma once

#include <vector>

#include "nn/layers/layers.h"
#include "nn/layers/random_features.h"
#include "sea/columns/stage.h"
#include "sea/light/light.h"

namespace brine::sea {

// The decoder's convolutions: the output of nu [B, H, T, c_h W] to scores [B, H, T, K].
class MapDecoder : public nn::Module {
 public:
  MapDecoder(nn::Init& init, int64_t heads, int64_t K, bool causal);
  // lengths i64 [B] or undefined. `images`, when given, receives the input of each convolution.
  Tensor operator()(const Tensor& x, const Tensor& lengths,
                    std::vector<Tensor>* images = nullptr) const;

  // The next row of every sequence, without a tape: x [B, H, 1, c_h W] -> scores [B, H, 1, K].
  // `windows` have the last rows of each convolution's input [B, rows that it reads, columns +
  // margins, channels] and are advanced by one row. Of causal models.
  Tensor step(const Tensor& x, const std::vector<Tensor>& windows) const;

  int64_t columns() const { return K_; }
  // All convolutions, in order.
  const std::vector<nn::Conv2d*>& convolutions() const { return convs_; }

 private:
  // x [B, H, T, c_h W] as the first convolution reads it.
  Tensor normed(const Tensor& x) const;

  int64_t heads_, K_, stride_;
  std::vector<nn::LayerNorm*> norms_;  // over columns, of its input and of its output; causal
  std::vector<nn::Conv2d*> convs_;     // the last is conv_out
};

// phi: random features of q and k. They are the features of the prior, too, if `prior` is set.
class Performer : public TokenStage {
 public:
  Performer(nn::Init& init, const nn::AttentionShape& shape, const SeaConfig& config);
  void run(Estimate& e, const Pass& pass) const override;
  void step(Estimate& e, const NewTokens& tokens, StageState& kept) const override;

 private:
  Tensor features(const Tensor& x, const Visibility& visible, FeatureSide side) const;
  void share(Estimate& e) const;

  SeaConfig config_;
  nn::RandomProjection& projection_;
};

// V_I (docs/method.md section 1.1): of causal models the parameter "table" [positions, d]; of
// encoders, which have none, the d x d identity resampled to the length of each sequence.
struct Identity : nn::Module {
  Identity(nn::Init& init, const nn::AttentionShape& s)
      : table(s.causal ? &parameter("table", init.normal({s.max_positions, s.head_size}, 1), false)
                       : nullptr) {}
  nn::Parameter* table;
};

// LayerNorm(Linear(.)), then GELU; of one head or of all heads of a token.
struct Mu : nn::Module {
  Mu(nn::Init& init, int64_t in, int64_t out)
      : linear(child<nn::Linear>("linear", init, in, out)),
        norm(child<nn::LayerNorm>("norm", init, out)) {}
  nn::Linear& linear;
  nn::LayerNorm& norm;
};

// C_perf = linear attention of phi over (V_I, v), and Z = mu of it and v.
class Mixture : public TokenStage {
 public:
  Mixture(nn::Init& init, const nn::AttentionShape& shape, const SeaConfig& config);
  void run(Estimate& e, const Pass& pass) const override;
  std::unique_ptr<StageState> make_state(SeaState& state,
                                         const nn::StateRequest& request) const override;
  void fill(StageState& kept, const SeaState& state, const Prompts& prompts) const override;
  void step(Estimate& e, const NewTokens& tokens, StageState& kept) const override;

 private:
  // The table of a causal model; only that is decoded.
  const Tensor& table() const { return identity_.table->value; }
  double key_eps() const;

  SeaConfig config_;
  nn::AttentionShape shape_;
  Identity& identity_;
  Mu& mu_;
};

// Gates of every token, a linear layer of Z; in files "scaler".
class TokenGates : public TokenStage {
 public:
  TokenGates(nn::Init& init, int64_t d, double start);
  void run(Estimate& e, const Pass& pass) const override;
  void step(Estimate& e, const NewTokens& tokens, StageState& kept) const override;

 private:
  nn::Linear& linear_;
};

// nu and the decoder.
class DecodedScores : public ScoreStage {
 public:
  DecodedScores(nn::Init& init, const nn::AttentionShape& shape, const SeaConfig& config);
  Tensor run(const Tensor& scores, Estimate& e, const Pass& pass) const override;
  std::unique_ptr<StageState> make_state(SeaState& state,
                                         const nn::StateRequest& request) const override;
  void fill(StageState& kept, const SeaState& state, const Prompts& prompts) const override;
  Tensor step(const Tensor& scores, const Estimate& e, const NewTokens& tokens, int64_t first,
              int64_t count, StageState& kept) const override;

 private:
  nn::Linear& nu_;
  MapDecoder& decoder_;
};

// The stages of any settings.
class PaperEstimator : public Estimator {
 public:
  PaperEstimator(nn::Init& init, const nn::AttentionShape& shape, const SeaConfig& config);
};

// A LightEstimator where the settings are its, else a PaperEstimator. Throws an Error when they do
// not fit the model.
std::unique_ptr<Estimator> make_estimator(nn::Init& init, const nn::AttentionShape& shape,
                                          const SeaConfig& config);

}  // namespace brine::sea
