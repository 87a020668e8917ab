// What answers prompts: a model, token by token under the true prefix and by greedy decoding.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/suites/prompt.h"
#include "nn/models/model_state.h"
#include "tensor/comm/communicator.h"

namespace brine::distill {

using Prompts = std::span<const data::Prompt>;

// The scored tokens of one answer, each predicted from the prompt and the true tokens before it.
struct ForcedAnswer {
  int64_t tokens = 0, hits = 0;  // hits: it is the likeliest token
  double nll = 0;                // sum over the tokens, natural logarithm
  bool all_hit = false;          // also those that are not scored: greedy decoding would give them
};

class Solver {
 public:
  virtual ~Solver() = default;
  virtual std::vector<ForcedAnswer> forced(Prompts prompts) = 0;
  virtual bool can_generate() const = 0;
  // The text of at most answer_tokens tokens; it may end as soon as it has all references.
  virtual std::vector<std::string> generated(Prompts prompts) = 0;
};

class ModelSolver : public Solver {
 public:
  // A causal model; both must outlive the solver.
  ModelSolver(nn::Model& model, const data::Tokenizer& tokenizer,
              const nn::RuntimeOptions& options = {},
              const std::optional<nn::CachedReading>& reading = {});

  // One pass over all prompts with their answers; logits are made for tokens of answers only.
  std::vector<ForcedAnswer> forced(Prompts prompts) override;
  bool can_generate() const override { return model_.attention_traits().incremental; }
  std::vector<std::string> generated(Prompts prompts) override;

 private:
  nn::Model& model_;
  const data::Tokenizer& tokenizer_;
  nn::RuntimeOptions options_;
  std::optional<nn::CachedReading> reading_;  // as EvaluateCall::reading
};

// The scores of one prompt. `generated` is below 0 where it was not generated.
struct PromptScore {
  double generated = -1;  // string_match_all of the output
  double forced = 0;      // share of the scored tokens that are the likeliest
  double nll = 0;         // mean over the scored tokens

  bool has_generated() const { return generated >= 0; }
};

struct ScoreCall {
  int64_t batch_size = 8;
  bool generate = true;
  Communicator* ranks = nullptr;  // that divide the batches; null: this process alone
};

// Prompts of one task. A prompt whose whole answer is the likeliest token by token is not
// generated: greedy decoding gives that answer.
std::vector<PromptScore> score_prompts(Solver& solver, Prompts prompts, const ScoreCall& call);

}  // namespace brine::distill
