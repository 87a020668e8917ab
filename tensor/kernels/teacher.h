// Kernels that compare a mask or an estimate with a teacher's attention. See kernel.h for the
// contract and tensor/mask/teacher.h for the definition of a teacher. Each section is a family.
#pragma once

#include "tensor/kernels/kernel.h"
#include "tensor/mask/teacher.h"

namespace brine {

// ---- teacher: the summary that approx_loss needs
BRINE_KERNEL(summarize_teacher, TeacherSummary summary, TeacherAttention teacher,
             Visibility visible)

// ---- approx_loss: the widened estimate against the teacher
// y [2] = {KL, MSE}, from scores [B, H, T, K].
BRINE_KERNEL(approx_loss, Tensor y, Tensor scores, TeacherSummary summary, Visibility visible)
BRINE_KERNEL(approx_loss_backward, Tensor dscores, Tensor dy, Tensor scores, TeacherSummary summary,
             Visibility visible)

// ---- prob_loss: the student's dense attention against the teacher
// y [2] = {KL, MSE} of softmax(scale q k^T). q and k may be bf16 or f16, as may a teacher's; sums
// over them and all the rest are f32. lse and teacher_lse [B, H, T] (0 with a map) are the
// log-sum-exp of each row's scores, for the backward pass.
BRINE_KERNEL(prob_loss, Tensor y, Tensor lse, Tensor teacher_lse, Tensor q, Tensor k,
             TeacherAttention teacher, Visibility visible, double scale)
BRINE_KERNEL(prob_loss_backward, Tensor dq, Tensor dk, Tensor dy, Tensor q, Tensor k,
             TeacherAttention teacher, Tensor lse, Tensor teacher_lse, Visibility visible,
             double scale)

}  // namespace brine
