// The kernels from the estimate to the sparse output, and of the attention losses. See kernel.h for
// the contract. S = csr.keys; e runs over the entries of a mask in the order of csr.columns.
#pragma once

#include "tensor/teacher.h"

namespace brine {

// ---- mask (cpu/select.cpp, cpu/csr.cpp)
// nan_count i64 [1]: NaN among the values that count. See csr.h for the rules.
BRINE_KERNEL(select_columns, Tensor selected, Tensor n_sel, Tensor nan_count, Tensor estimate,
             Visibility visible, SelectConfig config)
// csr.row_pointers and csr.head_offsets; then, with csr.columns of that size, the columns.
BRINE_KERNEL(count_csr, FlatCsr csr, Tensor selected, Visibility visible, int64_t k)
BRINE_KERNEL(fill_csr, FlatCsr csr, Tensor selected, Visibility visible, int64_t k)
BRINE_KERNEL(csr_to_mask, Tensor mask, FlatCsr csr)  // u8 [B, H, T, S]
// y [R, S] = softmax(scale x) over the entries with mask [R, S] != 0; 0 elsewhere.
// The backward is softmax_backward.
BRINE_KERNEL(masked_softmax, Tensor y, Tensor x, Tensor mask, double scale)

// ---- sparse attention (cpu/sparse_attention.cpp)
// y [B, H, T, d] = sum_e p_e v_key(e), p [entries] = softmax(scale q k) over the entries of one
// (row, head). A head without entries gives 0. q [B, H, T, d], k and v [B, H, S, d]; k and v may
// be bf16 or f16, both (then the rest is f32).
BRINE_KERNEL(sparse_attention, Tensor y, Tensor p, Tensor q, Tensor k, Tensor v, FlatCsr csr,
             double scale)
// Any of dq, dk, dv may be undefined (not wanted). q, k and v may be bf16 or f16, all three (then
// the rest is f32); dv then sums rows of dy rounded to that type.
BRINE_KERNEL(sparse_attention_backward, Tensor dq, Tensor dk, Tensor dv, Tensor dy, Tensor q,
             Tensor k, Tensor v, Tensor p, FlatCsr csr, double scale)

// ---- output (cpu/mix.cpp)
// y [B, T, H d]: s_mix s_prob c + (1 - s_mix) average, (s_prob, s_mix) = sigmoid(scalers
// [B, H, T, 2]); rows of padding are 0. c and average [B, H, T, d].
BRINE_KERNEL(mix_outputs, Tensor y, Tensor c, Tensor average, Tensor scalers, Visibility visible)
BRINE_KERNEL(mix_outputs_backward, Tensor dc, Tensor daverage, Tensor dscalers, Tensor dy, Tensor c,
             Tensor average, Tensor scalers, Visibility visible)
// y [B, H, T, d], the same for every valid row of a sequence, 0 at padding: sum_j i_j v_j, i = the
// mean over valid rows of the estimate [B, H, T, K], widened to keys and normalised to sum 1.
// Bidirectional; v [B, H, T, d].
BRINE_KERNEL(estimate_average, Tensor y, Tensor estimate, Tensor v, Visibility visible)
// y as it was returned. destimate or dv may be undefined.
BRINE_KERNEL(estimate_average_backward, Tensor destimate, Tensor dv, Tensor dy, Tensor estimate,
             Tensor v, Tensor y, Visibility visible)

// ---- teacher and losses (cpu/teacher.cpp, cpu/approx_loss.cpp, cpu/prob_loss.cpp)
BRINE_KERNEL(summarize_teacher, TeacherSummary summary, TeacherAttention teacher,
             Visibility visible)
// y [2] = {KL, MSE} of the widened estimate against the teacher, from scores [B, H, T, K].
BRINE_KERNEL(approx_loss, Tensor y, Tensor scores, TeacherSummary summary, Visibility visible)
BRINE_KERNEL(approx_loss_backward, Tensor dscores, Tensor dy, Tensor scores, TeacherSummary summary,
             Visibility visible)
// y [2] = {KL, MSE} of softmax(scale q k^T) against the teacher. Sums over q and k in 16 bits, as
// those over a teacher's, are f32, and so is what else there is. lse and teacher_lse [B, H, T]
// (0 with a map) are the log-sum-exp of each row's scores, for the backward.
BRINE_KERNEL(prob_loss, Tensor y, Tensor lse, Tensor teacher_lse, Tensor q, Tensor k,
             TeacherAttention teacher, Visibility visible, double scale)
BRINE_KERNEL(prob_loss_backward, Tensor dq, Tensor dk, Tensor dy, Tensor q, Tensor k,
             TeacherAttention teacher, Tensor lse, Tensor teacher_lse, Visibility visible,
             double scale)

// ---- measure (cpu/recall.cpp)
// Teacher mass over the rows with w > k: sums f64 [5, H] in the order of
// distill/evaluation/recall.h (the mask, the teacher's top keys, the mask `best`, the most recent
// keys, random keys), rows i64 [1].
BRINE_KERNEL(attention_recall, Tensor sums, Tensor rows, TeacherAttention teacher, FlatCsr csr,
             FlatCsr best, Visibility visible, SelectConfig config)

}  // namespace brine
