// The public ops from the mask to the sparse output, and the attention losses. Selection and CSR
// building have no gradient: they are in tensor/csr.h.
#pragma once

#include "autograd/node.h"
#include "tensor/teacher.h"

namespace brine {

// ---- attention under a mask (autograd/sparse.cpp)
// [B, H, T, S] -> softmax(scale scores) where the u8 mask of the same shape is not 0, 0 elsewhere.
Tensor masked_softmax(const Tensor& scores, const Tensor& mask, double scale = 1);
// q [B, H, T, d], k and v [B, H, S, d] -> P V [B, H, T, d], P = softmax(q k^T / sqrt(d)) over the
// entries of the mask; 0 for a head without entries. `probabilities`, when given, receives P
// [entries] in the order of csr.columns, off the tape.
Tensor sparse_attention(const Tensor& q, const Tensor& k, const Tensor& v, const FlatCsr& csr,
                        Tensor* probabilities = nullptr);

// ---- output (autograd/sparse.cpp)
// s_mix s_prob c + (1 - s_mix) average, heads concatenated: [B, T, H d], rows of padding 0.
// (s_prob, s_mix) = sigmoid(scalers [B, H, T, 2]); c and average [B, H, T, d].
Tensor mix_outputs(const Tensor& c, const Tensor& average, const Tensor& scalers,
                   const Visibility& visible);
// Bidirectional C_avg [B, H, T, d]: sum_j i_j v_j, i = the mean over valid rows of the estimate
// [B, H, T, K], widened to keys and normalised to sum 1 (the normaliser is differentiated).
Tensor estimate_average(const Tensor& estimate, const Tensor& v, const Visibility& visible);

// ---- attention losses (autograd/attention_loss.cpp): [2] = {KL(t || a), MSE(a, t)}, each a mean
// over the valid rows and heads; KL summed over a row's keys, MSE its sum of squares over its
// sequence's length. 0 log 0 = 0.
// a = the widened estimate of scores [B, H, T, K], in closed form from the summary at that K.
Tensor approx_loss(const Tensor& scores, const TeacherSummary& summary, const Visibility& visible);
// a = softmax(q k^T / sqrt(d)) over the visible keys, by tiles of rows: never T x T memory.
Tensor prob_loss(const Tensor& q, const Tensor& k, const TeacherAttention& teacher,
                 const Visibility& visible);

}  // namespace brine
