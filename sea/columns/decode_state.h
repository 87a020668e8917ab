// The decoding state of a causal SEA block with columns: keys and values, the last scores, the sum
// of the values, and what its stages keep.
#pragma once

#include "nn/attention/attention.h"
#include "sea/columns/estimator.h"

namespace brine::sea {

class SeaState : public nn::KeyValueState {
 public:
  SeaState(const Estimator& estimator, const nn::AttentionShape& shape,
           const nn::StateRequest& request);
  // For the stages of the estimator.
  using nn::KeyValueState::part;

  // Prompts and their estimate, for the sequences prompts.first, prompts.first + 1...
  void fill(const Prompts& prompts, const Estimator& estimator);
  // The next part of the prompt of one sequence, whose keys and values the state has.
  void extend(const Prompts& part, const Estimator& estimator);
  using nn::KeyValueState::extend;

  const int64_t query_skip;
  Tensor& value_sums;  // f64 [B, G, d]
  Tensor& scores;      // [B, H, 1, K] of the last query that was not skipped, including the priors
  std::vector<std::unique_ptr<StageState>> token_stages, score_stages;

 private:
  // v [B, G, T, d] of all tokens of these sequences.
  void sum_values(int64_t first, const Tensor& v);
};

// A stored state of another number of units has its borders elsewhere: it has no part with this
// ending of its name.
std::string suffix_of_borders(const SeaConfig& config);

}  // namespace brine::sea
