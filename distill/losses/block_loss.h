// The loss of the estimate of a mask of blocks (docs/method.md section 8.7).
#pragma once

#include "nn/attention/observer.h"
#include "tensor/mask/teacher.h"

namespace brine::distill {

// KL(tau / sum tau || softmax(scores)) of the rows whose scores are in the tap ("block_scores_z"
// and so on, sea/blocks/block_attention.h), tau the teacher's mass of each block: a mean over the
// rows that have a complete block, and over heads -> [1]. The teacher is [B, H, T, .].
Tensor block_approx_loss(const nn::Tap& student, const TeacherAttention& teacher,
                         const Visibility& visible);

}  // namespace brine::distill
