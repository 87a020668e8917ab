// The recipe of a distillation: its length and rates, its losses and the student's attention.
// Library calls and `brine distill` resolve it in the same place.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "distill/runs/settings/training_settings.h"
#include "nn/models/model_config.h"

namespace brine::distill {

// Named sets of defaults: for runs of minutes; those of SEA's paper (configs/paper).
enum class RecipeName { short_run, paper };
inline constexpr data::Named<RecipeName> kRecipeNames[] = {{RecipeName::short_run, "short"},
                                                           {RecipeName::paper, "paper"}};

// Weights of the losses (losses/loss_table.h) before all of them are decided; see LossConfig.
class LossWeights {
 public:
  LossWeights();             // every weight is empty
  double kl = 0.1, mse = 1;  // as in LossConfig

  // Throws for an unknown loss.
  std::optional<double>& operator[](const std::string& loss);
  void describe(data::Schema& s);
  // The same with what help shows as the default of a loss.
  void describe(data::Schema& s, const std::function<std::string(const std::string&)>& unset);
  LossConfig resolved() const;  // throws, naming a weight that is still empty

 private:
  std::map<std::string, std::optional<double>> weights_;
};

// What a recipe depends on besides its settings.
struct RunFacts {
  bool causal = true;        // the teacher predicts next tokens
  std::string task = {};     // name of the task; empty: text
  bool self_taught = false;  // the student is the teacher, too
  int64_t pooled = 0;        // columns of a dump that has the teacher's attention only by columns
  std::string massive = {};  // the teacher's massive activation in words; empty: it has none
};

struct Recipe {
  std::optional<RecipeName> name;  // empty: short_run
  TrainingSettings training;
  std::optional<double> epochs;  // for a task whose steps are empty
  LossWeights losses;
  nn::ModelConfig student;               // the attention settings; sizes are the teacher's
  nn::MaskSettings mask = {};            // settings of it that a library call gives
  std::set<std::string> attention_keys;  // keys of the student's attention that no recipe may
                                         // change

  Recipe() { student.attention = "sea"; }

  // The keys of a configuration. Keys of [attention] that are set through this schema are added to
  // attention_keys.
  void describe(data::Schema& s);
  // Takes what is not given from the configuration of a run that continues: its recipe, and the
  // weight of kd, which was decided by a measurement of the teacher.
  void keep(const data::Json& stored);
  // Decides everything that is empty, first by the facts, then by the recipe's name, and sets the
  // keys of the student's attention that were not set. A second call changes nothing. A task's
  // steps stay empty when they follow from its epochs: TrainingSettings::plan_epochs(). Returns
  // what was decided because of the teacher or its dump, as ends of sentences about it.
  std::vector<std::string> resolve(const RunFacts& facts);
};

// The traits of the student's attention. Rivals of SEA do not estimate the teacher's attention:
// they learn from the output of the model, as in the paper.
nn::AttentionTraits attention_traits(nn::ModelConfig& student, bool causal);

}  // namespace brine::distill
