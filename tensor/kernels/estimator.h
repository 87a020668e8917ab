// Kernels of SEA's estimator, from random features to the mixed output. See kernel.h for the
// contract and csr.h for which keys a column owns. Each section is a family.
//
// m random features, e = columns of a value, W = columns of an image, K = columns of an estimate;
// rows at or beyond a sequence's length are padding. G divides H: head h reads the keys and values
// of group h G / H, whose gradients are summed over the heads of the group. The `_step` kernels
// process one new token per sequence: the bits of a sequence do not depend on the other sequences
// or their number; with inputs in f32 the rows of earlier tokens may be bf16 or f16.
#pragma once

#include "tensor/kernels/kernel.h"
#include "tensor/types.h"

namespace brine {

// ---- features: learned features phi [B, G, T, m], 0 at padding
// Limits of the logarithm of learned features.
inline constexpr double kLowLogFeature = -20, kHighLogFeature = 12;
// phi = exp(phi + bias) in place, phi [B, G, T, m] from products with inputs, bias [G, m]; the
// exponent is limited as above.
BRINE_KERNEL(exp_features, Tensor phi, Tensor bias, Tensor lengths)
// dx is the gradient of the products, 0 at the limits and at padding.
BRINE_KERNEL(exp_features_backward, Tensor dx, Tensor dphi, Tensor phi)

// ---- linear_attention: the Performer's attention
// Keys that are read at once: products inside the chunk, a running state between chunks.
inline constexpr int64_t kLinearAttentionChunk = 48;
// y [B, H, T, e] = sum_s phi_q(t) . phi_k(s) v(s) / den(t) over the keys s that t sees, phi_q
// [B, H, T, m], phi_k [B, G, T, m],
// den(t) [B, H, T] = phi_q(t) . (sum_s phi_k(s) + eps); rows of padding are 0 (den 1).
// The values are [identity ; v]: v [B, G, T, d] and identity [P, i] (row t for token t, P >= T),
// [B, T, i] or undefined; e = i + d.
BRINE_KERNEL(linear_attention, Tensor y, Tensor den, Tensor phi_q, Tensor phi_k, Tensor identity,
             Tensor v, Visibility visible, double eps)
// didentity [P, i] is added to; undefined when it is not needed or identity is not a table.
BRINE_KERNEL(linear_attention_backward, Tensor dphi_q, Tensor dphi_k, Tensor didentity, Tensor dv,
             Tensor dy, Tensor y, Tensor den, Tensor phi_q, Tensor phi_k, Tensor identity, Tensor v,
             Visibility visible, double eps)
// state [B, G, m, e] and sums f64 [B, G, m] = the running sums of linear_attention after the last
// of L_b keys. identity [P, i].
BRINE_KERNEL(linear_attention_state, Tensor state, Tensor sums, Tensor phi_k, Tensor identity,
             Tensor v, Visibility visible)

// ---- prior: the share of each column in a row's linear attention
// The columns' borders are those of math::SumColumns.
// y [B, H, R, K] = scores + gain [H] log((w / n_c) share_c) at the columns c that own n_c > 0 keys,
// share_c = phi_q(t) . sum of phi_k over the keys of c, divided by the same over all w keys, at
// least `floor`. Row r is that of query t = r S of phi_q [B, H, T, m], R = ceil(T / S),
// S = grid.step.
// phi_k [B, G, T, m], G divides H: head h has the keys of group h G / H.
BRINE_KERNEL(performer_prior, Tensor y, Tensor scores, Tensor gain, Tensor phi_q, Tensor phi_k,
             Visibility visible, ColumnGrid grid, double floor)
// The gradient of scores is dy; that of a share at the floor is 0. dgain [H] is added to.
BRINE_KERNEL(performer_prior_backward, Tensor dgain, Tensor dphi_q, Tensor dphi_k, Tensor dy,
             Tensor gain, Tensor phi_q, Tensor phi_k, Visibility visible, ColumnGrid grid,
             double floor)
// performer_prior of one query per sequence, phi_q [B, H, 1, m], that sees width[b] keys. phi_k
// [B, G, R, m] has the sums of their features by units of keys, as append_to_units() makes them;
// without units those of every key. borders f64 [B, G, K + 1, >= m] contains the sums of the
// complete units before each column's first key for a width of at[b] keys, columns from m on 0;
// both move to width[b]; where at[b] = 0 or the unit was another one they are not read. at, width
// i64 [B], at <= width.
BRINE_KERNEL(performer_prior_step, Tensor y, Tensor borders, Tensor at, Tensor scores, Tensor gain,
             Tensor phi_q, Tensor phi_k, Tensor width, double floor, int64_t units)

// ---- pooled: the scores of the mean keys of columns
// y [B, H, R, K] = scores + gain [H] q(t) . mean key of column c / sqrt(d), the latter 0 where it
// owns no key. Rows and groups as in performer_prior: q [B, H, T, d], k [B, G, T, d].
BRINE_KERNEL(pooled_prior, Tensor y, Tensor scores, Tensor gain, Tensor q, Tensor k,
             Visibility visible, ColumnGrid grid)
// The gradient of scores is dy. dgain [H] is added to.
BRINE_KERNEL(pooled_prior_backward, Tensor dgain, Tensor dq, Tensor dk, Tensor dy, Tensor gain,
             Tensor q, Tensor k, Visibility visible, ColumnGrid grid)
// The same of one query per sequence, without scores and gain; k [B, G, S, d] has every key;
// borders f64 [B, G, K + 1, >= d] the sums of the keys before each column's first for a width of
// at[b] keys, that of K of all of them; at and width as in performer_prior_step.
BRINE_KERNEL(pooled_scores_step, Tensor y, Tensor borders, Tensor at, Tensor q, Tensor k,
             Tensor width, int64_t units)

// ---- table: the estimate where there is no decoder, without a gradient
// y [B, H, T, K] = column_softmax of bias [H, K] in every row with performer_prior() and
// pooled_prior() of mean_gain [H] added, in one pass. Other arguments as for these; grid.step = 1.
BRINE_KERNEL(table_estimate, Tensor y, Tensor bias, Tensor gain, Tensor phi_q, Tensor phi_k,
             Tensor mean_gain, Tensor q, Tensor k, Visibility visible, ColumnGrid grid,
             double floor)

// ---- image: the softmax over the columns of a row, and an identity by rows
// y [B, H, T, K] = softmax over the columns that own a key, 0 elsewhere. Its backward:
// softmax_backward with scale 1.
BRINE_KERNEL(column_softmax, Tensor y, Tensor scores, Visibility visible)
// y [B, T, d] = math::resampled_identity for the rows of every sequence's length, 0 at padding.
BRINE_KERNEL(resampled_identity, Tensor y, Tensor lengths, bool nearest)

// ---- mix: the outputs of both paths, mixed by gates
// y [B, T, H d]: s_mix s_prob c + (1 - s_mix) average, (s_prob, s_mix) = sigmoid(gates
// [B, H, T, 2]); rows of padding are 0. c [B, H, T, d], average [B, G, T, d].
BRINE_KERNEL(mix_outputs, Tensor y, Tensor c, Tensor average, Tensor gates, Visibility visible)
BRINE_KERNEL(mix_outputs_backward, Tensor dc, Tensor daverage, Tensor dgates, Tensor dy, Tensor c,
             Tensor average, Tensor gates, Visibility visible)

}  // namespace brine
