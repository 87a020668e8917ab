// The stages of the light block (`preset = light`): a table of scores for each head, to which the
// shares of the learned prior and the scores of mean keys are added, and gates of a head. They have
// no parameters that the length of a sequence limits.
#pragma once

#include <functional>
#include <optional>

#include "autograd/ops.h"
#include "nn/attention/attention.h"
#include "nn/layers/random_features.h"
#include "sea/columns/estimator.h"

namespace brine::sea {

// The learned prior: features of queries and keys whose products share a row's attention out among
// columns or blocks (docs/method.md section 1.6).

// exp(d^-1/4 A x + U content + b), of each head of x [B, heads, T, d] -> [B, heads, T, m].
struct PriorFeatures : nn::Module {
  // `projection` [m, d]: A starts at half of it, in every head.
  PriorFeatures(nn::Init& init, int64_t heads, const Tensor& projection, bool rotary);
  Tensor operator()(const Tensor& x, const Tensor& content, const Tensor& lengths) const;

  nn::Parameter& weight;  // A [heads, m, d]
  nn::Parameter& bias;    // b [heads, m]
  // U [heads, m, d], with rotary positions only.
  std::optional<std::reference_wrapper<nn::Parameter>> content;
};

// Two gates for each head, the same of every token: parameter "gates" [H, 2].
class HeadGates : public TokenStage {
 public:
  HeadGates(nn::Init& init, int64_t heads, double start)
      : gates_(parameter("gates", init.full({heads, 2}, start), false)) {}
  void run(Estimate& e, const Pass& pass) const override;
  void step(Estimate& e, const NewTokens& tokens, StageState& kept) const override;

 private:
  nn::Parameter& gates_;
};

// psi of the learned prior, of the queries and of the keys of a layer.
class LearnedFeatures : public TokenStage {
 public:
  LearnedFeatures(nn::Init& init, const nn::AttentionShape& shape, int64_t features)
      : LearnedFeatures(init, shape,
                        nn::random_projection(init, features, shape.head_size, Dtype::f64)) {}
  void run(Estimate& e, const Pass& pass) const override;
  void step(Estimate& e, const NewTokens& tokens, StageState& kept) const override;

 private:
  LearnedFeatures(nn::Init& init, const nn::AttentionShape& shape, const Tensor& R)
      : query_(child<PriorFeatures>("query", init, shape.heads, R, shape.rotary)),
        key_(child<PriorFeatures>("key", init, shape.groups(), R, shape.rotary)) {}

  PriorFeatures &query_, &key_;
};

// The same scores of every row: parameter "bias" [H, K].
class TableScores : public ScoreStage {
 public:
  TableScores(nn::Init& init, int64_t heads, int64_t K)
      : bias(parameter("bias", init.zeros({heads, K}), false)) {}
  Tensor run(const Tensor& scores, Estimate& e, const Pass& pass) const override;
  Tensor step(const Tensor& scores, const Estimate& e, const NewTokens& tokens, int64_t first,
              int64_t count, StageState& kept) const override;

  nn::Parameter& bias;
};

// Adds the gain [H] times the logarithm of each column's share in the linear attention of psi.
class ShareScores : public ScoreStage {
 public:
  // `features` m of psi.
  ShareScores(nn::Init& init, const nn::AttentionShape& shape, const SeaConfig& config,
              int64_t features)
      : gain(parameter("gain", init.full({shape.heads}, 1), false)),
        config_(config),
        shape_(shape),
        features_(features) {}
  Tensor run(const Tensor& scores, Estimate& e, const Pass& pass) const override;
  std::unique_ptr<StageState> make_state(SeaState& state,
                                         const nn::StateRequest& request) const override;
  void fill(StageState& kept, const SeaState& state, const Prompts& prompts) const override;
  void append(const Estimate& e, const NewTokens& tokens, StageState& kept) const override;
  Tensor step(const Tensor& scores, const Estimate& e, const NewTokens& tokens, int64_t first,
              int64_t count, StageState& kept) const override;
  // psi_k [1, G, t, m] of the t tokens that the sequence of a slot has, before further ones of type
  // `dtype`: of every token while its prompt is read, else sums of units at their first tokens.
  Tensor earlier_features(const StageState& kept, int64_t slot, int64_t t, Dtype dtype) const;

  nn::Parameter& gain;

 private:
  SeaConfig config_;
  nn::AttentionShape shape_;
  int64_t features_;
};

// Adds the gain [H] times the products with the mean keys of columns.
class MeanKeyScores : public ScoreStage {
 public:
  MeanKeyScores(nn::Init& init, const nn::AttentionShape& shape, const SeaConfig& config)
      : gain(parameter("pooled_gain", init.full({shape.heads}, 1), false)),
        config_(config),
        shape_(shape) {}
  Tensor run(const Tensor& scores, Estimate& e, const Pass& pass) const override;
  std::unique_ptr<StageState> make_state(SeaState& state,
                                         const nn::StateRequest& request) const override;
  Tensor step(const Tensor& scores, const Estimate& e, const NewTokens& tokens, int64_t first,
              int64_t count, StageState& kept) const override;

  nn::Parameter& gain;

 private:
  SeaConfig config_;
  nn::AttentionShape shape_;
};

// All of them. Without a gradient its estimate is one pass over memory.
class LightEstimator : public Estimator {
 public:
  LightEstimator(nn::Init& init, const nn::AttentionShape& shape, const SeaConfig& config);
  static bool fits(const SeaConfig& config);
  Estimate operator()(const LayerTokens& x, const Visibility& visible, int64_t query_skip,
                      Wanted wanted) const override;
  Estimate part(const LayerTokens& x, const SeaState& state, int64_t slot) const override;
  int64_t part_numbers() const override { return shape_.groups() * config_.prior_features; }

 private:
  // e.estimate of the rows of a pass from its features; the columns have the keys k.
  void add_estimate(Estimate& e, const Pass& pass, const Tensor& k) const;

  HeadGates& gates_;
  TableScores& table_;
  ShareScores& shares_;
  MeanKeyScores& means_;
  LearnedFeatures& features_;
};

}  // namespace brine::sea
