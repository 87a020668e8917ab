// The prompts of a suite, and the scores of attention methods on them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "distill/evaluation/suites/solver.h"
#include "distill/evaluation/suites/suite.h"

namespace brine::distill {

// The prompts of one task and length.
struct PromptBlock {
  const data::PromptTask* task = nullptr;
  int64_t length = 0;
  std::vector<int64_t> depths = {};  // of each prompt; -1 for a task without depths
  std::vector<data::Prompt> prompts = {};
};

// Every task and length; of a task with depths `samples` prompts for each depth.
std::vector<PromptBlock> make_blocks(const SuiteCall& call, const data::Tokenizer& tokenizer);

// One attention method at one number of kept keys.
struct MethodScores {
  std::string method;
  std::optional<int64_t> k = {};                      // none: it keeps every key
  std::vector<std::vector<PromptScore>> scores = {};  // by block and prompt
  std::vector<double> keys_read = {};                 // of the first prompt of each block
};

MethodScores score_blocks(Solver& solver, const std::vector<PromptBlock>& blocks,
                          const ScoreCall& call);

// Prompts of a task ("" = all), a length (0 = all) and a depth (none = all).
struct Selection {
  std::string task = {};
  int64_t length = 0;
  std::optional<int64_t> depth = {};
};
MeanScore mean_of(const MethodScores& method, const std::vector<PromptBlock>& blocks,
                  const Selection& which);

// See SuiteFloor.
SparsestK sparsest_k(const std::string& method, const std::vector<MethodScores>& rows,
                     const MethodScores& dense, const std::vector<PromptBlock>& blocks,
                     const Selection& which);

}  // namespace brine::distill
