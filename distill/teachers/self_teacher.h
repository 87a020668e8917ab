// A student that is the teacher of itself, for models of which no second copy fits into memory.
#pragma once

#include "distill/teachers/teacher.h"

namespace brine::distill {

// The teacher's attention is the student's dense attention, by rows from q and k without their
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

}  // namespace brine::distill
