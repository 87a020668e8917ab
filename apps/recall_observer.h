// Collects mask recall by layer while a model is evaluated, with its teacher in lockstep.
#pragma once

#include <vector>

#include "distill/model_io.h"
#include "distill/recall.h"
#include "distill/teacher.h"
#include "nn/observer.h"

namespace brine {

class RecallObserver : public nn::LayerObserver {
 public:
  // `k` = 0 takes the model's own. Throws when the two models differ in layers, heads or head size.
  RecallObserver(distill::LoadedModel teacher, const distill::LoadedModel& model, int64_t k);

  // Forgets what was counted; from now on for this `k`, as above.
  void restart(int64_t k);
  void begin(const distill::Batch& batch);
  Tensor observe(int64_t layer, const nn::Tap& tap, const Tensor& output) override;
  // One object per layer and one for "all": mask, top_keys, best_columns, most_recent, random,
  // rows.
  nn::Json table() const;

 private:
  distill::LoadedModel teacher_;
  distill::OnlineTeacher source_;
  SelectConfig select_;
  int64_t own_k_ = 0;
  Visibility see_;
  std::vector<distill::Recall> layers_;
};

// Prints such a table.
void print_recall(const nn::Json& rows);

}  // namespace brine
