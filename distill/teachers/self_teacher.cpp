// The student's q and k as its teacher's.
#include "distill/teachers/self_teacher.h"

namespace brine::distill {

void SelfTeacher::require(const TeacherNeeds& needs) {
  auto refuse = [](bool wanted, const char* loss, const char* what) {
    check(!wanted, "teacher: 'self' has no ", what, " of its own; set losses.", loss, " to 0");
  };
  refuse(needs.context, "context", "attention outputs");
  refuse(needs.output, "kd", "layer outputs");
  refuse(needs.logits, "kd_task", "logits");
}

void SelfTeacher::look_at(int64_t layer, const nn::Tap& student) {
  layer_ = layer;
  student_ = {.map = {}, .q = student.get("q").detach(), .k = student.get("k").detach()};
}

TeacherLayer SelfTeacher::layer(int64_t i) {
  check(i == layer_, "teacher: 'self' knows the layer that runs, ", layer_, ", not ", i);
  return {.attention = student_, .context = {}, .output = {}};
}

TopLogits SelfTeacher::logits() { throw Error("teacher: 'self' has no logits of its own"); }

}  // namespace brine::distill
