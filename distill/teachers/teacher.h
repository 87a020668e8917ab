// The source of the teacher's tensors: a teacher that runs next to the student, or a dump.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autograd/ops.h"
#include "data/dump/teacher_tensors.h"
#include "distill/batches/batch.h"
#include "nn/attention/observer.h"
#include "nn/models/model.h"

namespace brine::distill {

// One layer of a teacher: tensors by name, as in data/dump/teacher_tensors.h. What losses may
// request of one layer, all detached: "attention" [B, H, T, T] or "query" and "key" [B, H, T, d],
// keys and "value" of a group for each of its heads; "tau", "t_log_t" and "t_square" of a pooled
// dump; "attention_output" [B, T, H d] and "output" [B, T, C].
using TeacherLayer = data::TensorSet;

// The map, or the q and k from which it is computed.
TeacherAttention attention_of(const TeacherLayer& layer);

// The inputs from which a tensor is computed.
struct TeacherView {
  TeacherLayer& layer;  // the result is put here
  Visibility visible;
  int64_t columns = 0;  // K of pooled attention
};

// The tensor of the layer, computed if it is absent. Throws when it cannot be computed.
const Tensor& teacher_tensor(const TeacherView& view, const std::string& name);
// The teacher's attention as K = view.columns columns: the layer's columns, of which there must be
// K, or computed from its attention.
TeacherSummary teacher_summary(const TeacherView& view);

// The part that `part` can be computed from: "attention" for columns of it; else "".
std::string computed_from(const std::string& part);
// The part that provides `part`, where `has` tells which are available: itself, or the one that it
// is computed from; "": none.
std::string source_of(const std::string& part, const std::function<bool(const std::string&)>& has);

// A part of the teacher's tensors (data::part) and the losses that need it.
struct TeacherNeed {
  std::string part;
  std::vector<std::string> losses;
  std::string who() const;  // "the losses approx and prob need"
};
using TeacherNeeds = std::vector<TeacherNeed>;

// The windows of batch n; called from another thread.
using BatchOrder = std::function<std::vector<int64_t>(int64_t n)>;

class Teacher {
 public:
  virtual ~Teacher() = default;
  // Throws an error that names what is absent and the loss that needs it.
  virtual void require(const TeacherNeeds& needs) = 0;
  // Announces the next batches, first, first + 1, ...: a dump reads ahead.
  virtual void plan(const BatchOrder& /*order*/, int64_t /*first*/) {}
  virtual void begin(const Batch& batch) = 0;
  // Shows the tensors of the student's layer, before that layer is requested.
  virtual void observe_student(int64_t /*layer*/, const nn::Tap& /*student*/) {}
  // Layers are requested once each in order, 0 first; with recomputation from the last to the
  // first.
  virtual TeacherLayer layer(int64_t i) = 0;
  // Of rows first.. of [B T]; requested in order, and not before layers that follow in order.
  virtual TopLogits logits(int64_t first, int64_t rows) = 0;
  virtual Tensor class_logits();  // [B, labels]; throws when there are none
};

// Runs next to the student, one layer at a time when they are requested in order, in evaluation
// mode without a tape. Inputs of layers are kept for recomputation only.
class OnlineTeacher : public Teacher {
 public:
  // top_n: the number of logits of a row that count (0 = all), as in a dump.
  explicit OnlineTeacher(std::shared_ptr<nn::Model> model, int64_t top_n = 0);
  const nn::Model& model() const { return *model_; }
  void require(const TeacherNeeds& needs) override;
  void begin(const Batch& batch) override;
  TeacherLayer layer(int64_t i) override;
  TopLogits logits(int64_t first, int64_t rows) override;
  Tensor class_logits() override;

 private:
  // Runs layers that were not requested; keeps what is needed if they still are.
  void run_to(int64_t layer);
  const Tensor& last_hidden();

  std::shared_ptr<nn::Model> model_;
  int64_t top_n_;
  nn::ModelCall call_;
  bool needs_layers_ = true, needs_inner_ = true;  // inner: more of a layer than its output
  Tensor x_;                                       // the input of layer reached_
  int64_t reached_ = 0;
  std::map<int64_t, Tensor> kept_;  // of layers before it: their inputs, or outputs if that is all
  Tensor finished_;                 // [B, T, C] for the heads, when they are requested
};

// A student that is the teacher of itself, for models of which no second copy fits into memory. The
// teacher's attention is the student's dense attention, by rows from q and k without their
// gradients. There are no attention outputs, layer outputs or logits: losses that need them are
// refused.
class SelfTeacher : public Teacher {
 public:
  void require(const TeacherNeeds& needs) override;
  void begin(const Batch&) override { student_ = {}; }
  void observe_student(int64_t layer, const nn::Tap& student) override;
  TeacherLayer layer(int64_t i) override;
  TopLogits logits(int64_t first, int64_t rows) override;

 private:
  int64_t layer_ = -1;
  TeacherLayer student_;
};

// A massive activation of a teacher (Sun et al. 2024): a few features of the first token that are
// thousands of times as large as others, in most pretrained decoders.
struct MassiveActivation {
  int64_t layer = 0, feature = 0;  // of the first token in the layer's output
  double value = 0;
  double usual = 0;  // root of the mean square of the other tokens' features
  double share = 0;  // of the first token in the squares of all tokens

  std::string text() const;  // "feature 12 of the first token is 1300 in layer 3, others .8"
};

// That of the layer where the first of 64 tokens has the largest share in the squares, if it is
// more than half. Squared distances of layer outputs (the loss kd) are then of that token alone.
// Empty for an encoder.
std::optional<MassiveActivation> massive_activation(nn::Model& teacher);

}  // namespace brine::distill
