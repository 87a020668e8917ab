// The estimator: from q, k, v to the compressed attention (docs/method.md section 1), as a list of
// stages that run in order.
#pragma once

#include <vector>

#include "sea/columns/stage.h"

namespace brine::sea {

class Estimator : public nn::Module {
 public:
  // Whole sequences. With query_skip f, the scores are computed of rows 0, f, 2f... and row t takes
  // those of row f floor(t / f).
  virtual Estimate operator()(const LayerTokens& x, const Visibility& visible,
                              int64_t query_skip = 1, Wanted wanted = Wanted::scores) const;
  // One new token of every sequence, without a tape, T = 1; the state already contains the keys and
  // values.
  Estimate step(const LayerTokens& x, SeaState& state) const;

  // Numbers that are kept of every token while a prompt is read in parts; 0: it is read whole.
  virtual int64_t part_numbers() const { return 0; }
  // The next tokens of a sequence that is read in parts, without a tape; the state already contains
  // their keys and values.
  virtual Estimate part(const LayerTokens& /*x*/, const SeaState& /*state*/,
                        int64_t /*slot*/) const {
    return {};
  }

  // Adds what the stages keep to the state of a block, and fills it from prompts.
  void make_state(SeaState& state, const nn::StateRequest& request) const;
  void fill(SeaState& state, const Prompts& prompts) const;

  const SeaConfig& config() const { return config_; }

 protected:
  Estimator(const nn::AttentionShape& shape, const SeaConfig& config)
      : config_(config), shape_(shape) {}
  void check_input(const LayerTokens& x, const Visibility& visible, int64_t query_skip) const;

  // Stages for every token: features, gates; then those of the rows whose scores are computed.
  template <class S, class... Args>
  S& token_stage(const std::string& name, Args&&... args) {
    S& stage = child<S>(name, std::forward<Args>(args)...);
    token_stages_.push_back(&stage);
    return stage;
  }
  template <class S, class... Args>
  S& score_stage(const std::string& name, Args&&... args) {
    S& stage = child<S>(name, std::forward<Args>(args)...);
    score_stages_.push_back(&stage);
    return stage;
  }

  SeaConfig config_;
  nn::AttentionShape shape_;
  std::vector<TokenStage*> token_stages_;
  std::vector<ScoreStage*> score_stages_;
};

}  // namespace brine::sea
