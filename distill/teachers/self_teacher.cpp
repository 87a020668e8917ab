// A student as the teacher of itself: its q and k give the teacher's attention.
#include "distill/teachers/self_teacher.h"

namespace brine::distill {

void SelfTeacher::require(const TeacherNeeds& needs) {
  auto has = [](const std::string& part) { return part == data::part::attention; };
  for (const TeacherNeed& need : needs) {
    check(!sources_of(need.part, has).empty(), "teacher: 'self' has no ", need.part,
          " of its own; set losses.", need.losses.empty() ? "" : need.losses[0], " to 0");
  }
}

void SelfTeacher::observe_student(int64_t layer, const nn::Tap& student) {
  layer_ = layer;
  student_ = {};
  student_["query"] = student.get("q").detach();
  student_["key"] = student.get("k").detach();
}

TeacherLayer SelfTeacher::layer(int64_t i) {
  check(i == layer_, "teacher: 'self' has only the layer that runs, ", layer_, ", not ", i);
  return student_;
}

TopLogits SelfTeacher::logits(int64_t, int64_t) {
  throw Error("teacher: 'self' has no logits of its own");
}

}  // namespace brine::distill
