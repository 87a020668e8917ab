// The public ops that compare a student with a teacher's attention; ops.h includes this header.
#pragma once

#include "autograd/node.h"
#include "tensor/mask/teacher.h"

namespace brine {

// Both losses are [2] = {KL(t || a), MSE(a, t)}, each a mean over the valid rows and heads; KL is
// summed over a row's keys, MSE is its sum of squares over its sequence's length. 0 log 0 = 0.

// ---- approx_loss.cpp
// a = the widened estimate of scores [B, H, T, K], in closed form from the summary at that K.
Tensor approx_loss(const Tensor& scores, const TeacherSummary& summary, const Visibility& visible);
// a of a key = exp(log_estimate) of its column, [B, H, T, K], which need not sum to 1 over the
// keys; KL = sum t log(t / a) may then be negative. log_estimate at columns without keys is not
// used. In closed form, too, but composed of primitives.
Tensor approx_loss_of_logs(const Tensor& log_estimate, const TeacherSummary& summary,
                           const Visibility& visible);

// ---- prob_loss.cpp
// a = softmax(q k^T / sqrt(d)) over the visible keys, by tiles of rows: never T x T memory.
Tensor prob_loss(const Tensor& q, const Tensor& k, const TeacherAttention& teacher,
                 const Visibility& visible);

}  // namespace brine
