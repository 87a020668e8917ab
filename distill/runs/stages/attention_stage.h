// Stage `attention` (docs/distillation.md): the attention method of each layer learns by itself
// from the teacher's layer.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "distill/batches/batch.h"
#include "distill/evaluation/recall.h"
#include "distill/log/values.h"
#include "distill/losses/losses.h"
#include "distill/teachers/dump_teacher.h"
#include "nn/models/model.h"
#include "nn/models/model_config.h"
#include "nn/optim/optimizer.h"

namespace brine::distill {

// What the attention methods of a teacher's layers read and give, layer by layer: from a model that
// runs, or from a dump of one.

// The input of a layer's attention method and its output [B, T, H d].
struct SeenLayer : nn::AttentionObserver {
  std::optional<nn::AttentionInput> input;
  Tensor output;
  void observe(const nn::AttentionInput& in, const Tensor& out) override {
    input.emplace(in);
    output = out;
  }
};

class LayerInputs {
 public:
  virtual ~LayerInputs() = default;
  virtual int64_t layers() const = 0;
  // Calls `at` for each of `layers`, ascending.
  virtual void show(const Batch& batch, const std::vector<int64_t>& layers,
                    const std::function<void(int64_t, const SeenLayer&)>& at) = 0;
};

// The model runs without a tape up to the last of the layers.
std::shared_ptr<LayerInputs> inputs_of(std::shared_ptr<nn::Model> teacher);
// Throws unless the dump has q and k, values and, for `context`, the loss of that name, attention
// outputs; and for a method that reads the layer's hidden states. q and k from before their
// rotation, for a method that reads them, are rotated back by the positions of the student.
std::shared_ptr<LayerInputs> inputs_of(std::shared_ptr<DumpTeacher> dump, const nn::Model& student,
                                       bool context = true);

// Calibrates the student's attention on the keys that a dump has for a batch.
void calibrate_from(DumpTeacher& dump, const Batch& batch, nn::Model& student);

// One layer of the teacher and what the student's block makes of the same input.
struct BlockView {
  int64_t layer = 0;
  const TeacherLayer& teacher;  // "query", "key" [B, H, T, d], "attention_output" [B, T, H d]
  const nn::Tap& block;
  Visibility visible;
  double loss = 0;  // of this batch
};
using BlockObserver = std::function<void(const BlockView&)>;

// The teacher shows its layers for a batch, one at a time; the student's attention method of the
// layer gets the same q, k, v, hidden states, and its losses are differentiated before the next
// layer. So one layer's tensors are alive, no gradient reaches the teacher's weights or another
// layer, and a layer's gradients do not depend on which other layers are trained.
class AttentionStage : public StepObjective {
 public:
  // The student's attention methods are trained; its other tensors are not used. `losses` are those
  // of the attention of a layer (approx, context; prob is constant here); throws for others.
  // `layers`: those to train, ascending; empty = all.
  AttentionStage(std::shared_ptr<LayerInputs> teacher, nn::Model& student, const LossConfig& losses,
                 std::vector<int64_t> layers = {});

  // Terms: the losses as means over the layers, and "layer.N", the sum of those of a layer.
  PendingTerms accumulate(const Batch& batch, const Call& call) override;
  // Replaces "layer.N" by "worst_loss", the largest of them, and "worst_layer".
  void summarize(LossTerms& terms) const override;
  // Shows every layer of a batch, without gradients.
  void evaluate(const Batch& batch, const BlockObserver& observer) const;

  // The parameters that are trained, for the ParameterStore.
  bool trains(const nn::Module::NamedParameter& parameter) const;
  // Rates, clipping by layer. `feature_rate` is for the features of a learned prior, parameters
  // prior.query.* and prior.key.* of the method, `rate` for all others.
  nn::ParameterPlanner plan(double rate, double feature_rate) const;

 private:
  // The weighted losses of one layer, without share; `observer` may be empty.
  std::vector<PendingTerm> block_terms(const Batch& batch, int64_t layer, const SeenLayer& seen,
                                       Tensor& sum, const BlockObserver& observer) const;
  // The index in layers_ of a parameter's layer; -1: none.
  int64_t index_of(const std::string& path) const;

  std::shared_ptr<LayerInputs> teacher_;
  nn::Model& student_;
  LossConfig config_;
  std::vector<int64_t> layers_;
};

// Losses and mask recall of the blocks of a student, by layer, on the teacher's activations.
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
