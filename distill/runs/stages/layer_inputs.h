// What the attention methods of a teacher's layers read and give, layer by layer: from a model that
// runs, or from a dump of one.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "distill/batches/batch.h"
#include "distill/teachers/dump_teacher.h"
#include "nn/models/model.h"

namespace brine::distill {

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
// rotation, for a method that reads them, are turned back by the positions of the student.
std::shared_ptr<LayerInputs> inputs_of(std::shared_ptr<DumpTeacher> dump, const nn::Model& student,
                                       bool context = true);

// Calibrates the student's attention on the keys that a dump has for a batch.
void calibrate_from(DumpTeacher& dump, const Batch& batch, nn::Model& student);

}  // namespace brine::distill
