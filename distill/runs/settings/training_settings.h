// The settings of a training run before all of them are decided.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "data/config/schema.h"
#include "distill/trainer.h"

namespace brine::distill {

// An empty setting is decided by the recipe of the run, or by its training data.
struct TrainingSettings {
  std::optional<int64_t> sequence_length;  // 0: the model's positions
  std::optional<int64_t> steps, batch_size, eval_every, warmup_steps;
  std::optional<bool> recompute;
  std::optional<double> learning_rate, attention_learning_rate;
  std::optional<nn::Decay> schedule;
  TrainerConfig rest;  // settings that have a default in every run; resolved() fills its other
                       // members

  // Help and documentation show the values of `defaults` as defaults; for empty ones they say that
  // the recipe decides.
  void describe(data::Schema& s, const TrainingSettings& defaults = {});
  // Gives every empty setting its value in `defaults`.
  void fill(TrainingSettings defaults);
  // Steps, warm-up and evaluations of a task, where they are empty: `epochs` passes over `texts`
  // texts, a share of them as warm-up, an evaluation after each. Throws when that is too many
  // steps.
  void plan_epochs(double epochs, double warmup_ratio, int64_t texts);
  // Throws an Error that names a setting which is still empty.
  TrainerConfig resolved() const;
};

// Weights of the losses (losses/loss_table.h) before all of them are decided; see LossConfig.
class LossWeights {
 public:
  LossWeights();             // every weight is empty
  double kl = 0.1, mse = 1;  // as in LossConfig

  // Throws for an unknown loss.
  std::optional<double>& operator[](const std::string& loss);
  void describe(data::Schema& s);
  // Weights that are empty are 0.
  LossConfig config() const;

 private:
  std::map<std::string, std::optional<double>> weights_;
};

}  // namespace brine::distill
