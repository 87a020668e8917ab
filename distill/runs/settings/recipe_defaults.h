// The values of the named recipes.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "distill/runs/settings/recipe.h"

namespace brine::distill {

// Keys of an attention method with their values as text.
using AttentionDefaults = std::vector<std::pair<std::string, std::string>>;

// Keys of the student's attention that are not in `set` get these values, if its method has them
// and no preset was chosen.
void choose_attention(nn::ModelConfig& student, const std::set<std::string>& set,
                      const AttentionDefaults& defaults);

// Gives the student's attention these settings; their keys are added to `set`. Throws for one that
// the method does not have.
void give_mask(nn::ModelConfig& student, std::set<std::string>& set, const nn::MaskSettings& mask);

struct RecipeDefaults {
  TrainingSettings training;
  std::optional<int64_t> task_steps;  // of a task, unless its epochs are given
  double epochs = 20;
  LossWeights losses;
  AttentionDefaults attention;
};

// Complete, but for the steps, warm-up and evaluations of a task.
RecipeDefaults defaults_of(RecipeName name, const RunFacts& facts);

}  // namespace brine::distill
