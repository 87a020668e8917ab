// The teacher's summary: the checked function over its kernel.
#include "tensor/mask/teacher.h"

#include "tensor/kernels/teacher.h"

namespace brine {

void check_teacher(const char* op, const TeacherAttention& teacher, const Tensor& like) {
  int64_t B = like.dim(0), H = like.dim(1), T = like.dim(2);
  if (teacher.map.defined()) {
    check((teacher.map.shape() == Shape{B, H, T, T}) && teacher.map.dtype() == like.dtype(), op,
          ": the teacher's map must be ", like.dtype(), " ", Shape{B, H, T, T}, ", got ",
          teacher.map.dtype(), " ", teacher.map.shape());
    return;
  }
  check(teacher.q.defined() && teacher.k.defined(), op,
        ": the teacher's attention is absent, neither a map nor q and k are given");
  check(teacher.q.rank() == 4 && teacher.q.shape() == teacher.k.shape() && teacher.q.dim(0) == B &&
            teacher.q.dim(1) == H && teacher.q.dim(2) == T && teacher.q.dim(3) > 0 &&
            teacher.q.dtype() == teacher.k.dtype() &&
            sum_type(teacher.q.dtype()) == sum_type(like.dtype()),
        op, ": the teacher's q and k must be ", sum_type(like.dtype()),
        sum_type(like.dtype()) == Dtype::f32 ? " or of 16 bits" : "", " [", B, ", ", H, ", ", T,
        ", d], got ", teacher.q.dtype(), " ", teacher.q.shape(), " and ", teacher.k.dtype(), " ",
        teacher.k.shape());
}

TeacherSummary summarize_teacher(const TeacherAttention& given, int64_t K,
                                 const Visibility& visible) {
  Tensor like = given.map.defined() ? given.map : given.q;
  check(like.defined() && like.rank() == 4,
        "summarize_teacher: wanted a map [B, H, T, T] or q and k [B, H, T, d]");
  check_teacher("summarize_teacher", given, like);
  check(!given.map.defined() || !has_16_bits(like.dtype()),
        "summarize_teacher: a map must be f32 or f64, got ", like.dtype());
  check(K > 0, "summarize_teacher: K must be positive, got ", K);
  int64_t B = like.dim(0), H = like.dim(1), T = like.dim(2);
  check_visibility("summarize_teacher", visible, B, T);
  auto packed = [](const Tensor& t) { return t.defined() ? t.detach().contiguous() : t; };
  TeacherAttention teacher{packed(given.map), packed(given.q), packed(given.k)};
  auto make = [&](const Shape& shape) {
    return Tensor::empty(shape, sum_type(like.dtype()), like.device());
  };
  TeacherSummary summary{make({B, H, T, K}), make({B, H, T}), make({B, H, T})};
  BRINE_CALL(like, summarize_teacher, summary, teacher, visible);
  return summary;
}

}  // namespace brine
