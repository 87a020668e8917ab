// Collects mask recall by layer while a model is evaluated, with its teacher in lockstep.
#pragma once

#include <vector>

#include "distill/evaluation/recall.h"
#include "distill/teachers/teacher.h"
#include "nn/attention/observer.h"
#include "nn/io/model_io.h"

namespace brine::distill {

class RecallObserver : public nn::LayerObserver {
 public:
  // `k` = 0 uses the model's own. Throws when the two models differ in layers, heads or head size.
  RecallObserver(nn::LoadedModel teacher, const nn::LoadedModel& model, int64_t k);

  // Clears the counts; from now on counts for this `k`, as above.
  void restart(int64_t k);
  void begin(const distill::Batch& batch);
  Tensor observe(int64_t layer, const nn::Tap& tap, const Tensor& output) override;
  // One object per layer and one for "all": mask, top_keys, best_columns, most_recent, random,
  // rows.
  data::Json table() const;

 private:
  nn::LoadedModel teacher_;
  distill::OnlineTeacher source_;
  SelectConfig select_;
  int64_t own_k_ = 0;
  Visibility visible_;
  std::vector<distill::Recall> layers_;
};

// Prints such a table.
void print_recall(const data::Json& rows);

}  // namespace brine::distill
