// Losses and mask recall of the blocks of a student, by layer, on the teacher's activations.
#pragma once

#include <optional>
#include <vector>

#include "distill/evaluation/recall.h"
#include "distill/log/values.h"
#include "distill/runs/stages/attention_stage.h"
#include "nn/models/model_config.h"

namespace brine::distill {

class BlockReport {
 public:
  // Recall is measured when the student's attention method has a mask.
  explicit BlockReport(const nn::ModelConfig& student);

  // `share` of the batch in all rows.
  void add(const BlockView& view, double share);
  // "block_loss", the mean over the layers, "worst_loss" and "worst_layer"; the health of the
  // masks, "block_mask_recall" and so on; for each layer "layer.N.loss", "layer.N.recall".
  Values values() const;

 private:
  struct Layer {
    double loss = 0;
    Recall recall;
  };
  std::optional<SelectConfig> select_;
  std::vector<Layer> layers_;
};

}  // namespace brine::distill
