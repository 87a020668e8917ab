// Where the teacher's tensors come from: a teacher that runs beside the student, or a dump.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "autograd/ops.h"
#include "distill/batches/batch.h"
#include "distill/teachers/teacher_layer.h"
#include "nn/models/model.h"

namespace brine::distill {

// A part of the teacher's tensors (data::part, or a registered tensor) and the losses that need it.
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
  // Throws, naming what is absent and the loss that needs it.
  virtual void require(const TeacherNeeds& needs) = 0;
  // Announces the batches to come, first, first + 1, ...: a dump reads ahead.
  virtual void plan(BatchOrder /*order*/, int64_t /*first*/) {}
  virtual void begin(const Batch& batch) = 0;
  // Shows what the student's layer holds, before that layer is asked for.
  virtual void look_at(int64_t /*layer*/, const nn::Tap& /*student*/) {}
  // Layers are asked for in order, 0 first; with recomputation from the last to the first.
  virtual TeacherLayer layer(int64_t i) = 0;
  virtual TopLogits logits() = 0;  // rows [B T]
  virtual Tensor class_logits();   // [B, labels]; throws where there are none
};

// Runs beside the student, one layer at a time where they are asked for in order, in evaluation
// mode without a tape.
class OnlineTeacher : public Teacher {
 public:
  // top_n: how many logits of a row count (0 = all), as in a dump.
  explicit OnlineTeacher(std::shared_ptr<nn::Model> model, int64_t top_n = 0);
  void require(const TeacherNeeds& needs) override;
  void begin(const Batch& batch) override;
  TeacherLayer layer(int64_t i) override;
  TopLogits logits() override;
  Tensor class_logits() override;

 private:
  void run_to(int64_t layer);  // makes inputs_[layer], through layers that nobody asked for
  Tensor last_hidden();

  std::shared_ptr<nn::Model> model_;
  int64_t top_n_;
  nn::ModelCall call_;
  std::vector<std::string> while_running_;  // needed tensors that are computed from the Tap
  std::vector<Tensor> inputs_;              // inputs_[i] enters layer i
};

}  // namespace brine::distill
