// The public ops of SEA's estimator and output, in the order of use; ops.h includes this header. m
// random features, W = columns of an image, K = columns of the estimate; rows at or beyond a
// sequence's length are padding. G divides H: head h reads group h G / H of the keys and values.
// On a GPU random features have feature_columns(m) columns, those from m on 0, where m is said
// here.
//
// The `_step` ops process one new token per sequence, off the tape: the bits of a sequence do not
// depend on the other sequences or their number.
#pragma once

#include "autograd/node.h"
#include "tensor/types.h"

namespace brine {

// ---- features.cpp
// phi [B, H, T, m] = relu(x R^T d^-1/4) + eps, 0 at padding. x [B, H, T, d]; the projection
// R [m, d] is constant. x must not be scaled by d^-1/2 before.
Tensor relu_features(const Tensor& x, const Tensor& projection, double eps, const Tensor& lengths);
// phi = m^-1/2 (exp(x R^T d^-1/4 - |x|^2 / (2 sqrt(d)) - max) + eps), 0 at padding. max, a constant
// for the gradient, is over a row of x R^T d^-1/4, or for keys over a sequence and head: keys then
// depend on each other, so a causal model must not use it.
Tensor softmax_features(const Tensor& x, const Tensor& projection, double eps,
                        const Tensor& lengths, FeatureSide side);
Tensor relu_features_step(const Tensor& x, const Tensor& projection, double eps);
// Learned features [B, G, T, m] = exp(d^-1/4 A x + U content + b), 0 at padding; the exponent is
// limited to [-20, 12] and has no gradient outside. x and content [B, G, T, d], A and U [G, m, d],
// b [G, m]; content and U are undefined together.
struct ExpFeatureWeights {
  Tensor weight, bias, content;  // A, b, U
};
Tensor exp_features(const Tensor& x, const Tensor& content, const ExpFeatureWeights& weights,
                    const Tensor& lengths);

// ---- linear_attention.cpp
// y [B, H, T, i + d] = the Performer's attention of phi_q [B, H, T, m], phi_k [B, G, T, m] to the
// values [identity ; v], v [B, G, T, d]; 0 at padding. identity is a table [P, i], P >= T, whose
// row t belongs to token t of every head; or [B, T, i], constant; or undefined. eps is added to
// every entry of the key sum.
Tensor linear_attention(const Tensor& phi_q, const Tensor& phi_k, const Tensor& identity,
                        const Tensor& v, const Visibility& visible, double eps = 1e-6);
// The running sums after the keys of a prompt: state [B, G, m, e], sums f64 [B, G, m]. Here and
// below identity may be undefined, too.
void linear_attention_state(const Tensor& state, const Tensor& sums, const Tensor& phi_k,
                            const Tensor& identity, const Tensor& v, const Visibility& visible);
// -> [B, H, 1, e] for phi_q [B, H, 1, m], phi_k [B, G, 1, m], v [B, G, 1, d]; the token is at
// position at[b] of the table identity [P, i], which must contain that row. The token is added to
// the running sums.
Tensor linear_attention_step(const Tensor& state, const Tensor& sums, const Tensor& phi_q,
                             const Tensor& phi_k, const Tensor& identity, const Tensor& v,
                             const Tensor& at, double eps);

// ---- prior.cpp
// scores [B, H, R, K] + gain [H] log((w / n_c) share_c) at the columns that have n_c > 0 keys;
// share_c = the share of the row's linear attention that falls on these keys, at least `floor`
// (there its gradient is 0). Row r is that of query r grid.step, R = ceil(T / grid.step);
// columns are those of math::SumColumns. phi_q [B, H, T, m],
// phi_k [B, G, T, m]; G divides H: head h has the keys of group h G / H.
Tensor performer_prior(const Tensor& scores, const Tensor& gain, const Tensor& phi_q,
                       const Tensor& phi_k, const Visibility& visible, ColumnGrid grid = {},
                       double floor = 0);
// One query: borders f64 [B, G, K + 1, border_columns(m)] and at i64 [B] advance to width[b] keys,
// the sums of whose features by units are in phi_k [B, G, R, m], as append_to_units() makes them;
// scores [B, H, 1, K]. Here and below rows of earlier keys may be bf16 or f16 for inputs in f32.
Tensor performer_prior_step(const Tensor& borders, const Tensor& at, const Tensor& scores,
                            const Tensor& gain, const Tensor& phi_q, const Tensor& phi_k,
                            const Tensor& width, double floor = 0, int64_t units = 0);
// Adds row [B, G, 1, m], the features of key at[b] of sequence b, to the sums by units of keys,
// rows [B, G, R, m]: docs/method.md section 1.6. With units = 0 every key is a row.
void append_to_units(const Tensor& rows, const Tensor& row, const Tensor& at, int64_t K,
                     int64_t units);
// The sums [B, G, rows, m], f64 or of x's type, of the rows of x [B, G, T, m] before lengths[b] by
// units of units[b] rows, both i64 [B]; 0 beyond them. In f64. No gradient.
Tensor sum_units(const Tensor& x, const Tensor& lengths, const Tensor& units, int64_t rows,
                 Dtype type);
// Rows of the units of w keys.
int64_t unit_rows(int64_t w, int64_t K, int64_t units);
// Number of columns for sums of m features: whole vectors of the widest instruction set.
inline int64_t border_columns(int64_t m) { return (m + 7) / 8 * 8; }
// Number of columns of m random features: on a GPU rows are aligned to 16 bytes, which its kernels
// and cuBLASLt read in one load; columns from m on are 0, which changes no sum.
inline int64_t feature_columns(int64_t m, Device device) {
  return device.is_cuda() ? (m + 3) / 4 * 4 : m;
}

// ---- pooled.cpp
// scores [B, H, R, K] + gain [H] q . (mean key of column c) / sqrt(d), the latter 0 where the
// column has no key; rows and groups as above, q [B, H, T, d], k [B, G, T, d].
Tensor pooled_prior(const Tensor& scores, const Tensor& gain, const Tensor& q, const Tensor& k,
                    const Visibility& visible, ColumnGrid grid = {});
// Of one query the products with mean keys alone, [B, H, 1, K], q [B, H, 1, d]; borders, at and
// width as in performer_prior_step(), k [B, G, S, d].
Tensor pooled_scores_step(const Tensor& borders, const Tensor& at, const Tensor& q, const Tensor& k,
                          const Tensor& width, int64_t units = 0);

// ---- table.cpp
// Inputs of one prior: gain [H], q [B, H, T, m], k [B, G, T, m].
struct PriorInputs {
  Tensor gain, q, k;
};
// [B, H, T, K] = column_softmax(pooled_prior(performer_prior(bias, prior), means)) with the row of
// bias [H, K] as every row's scores, in one pass over memory, without a gradient
// (docs/method.md section 1.6). With Visibility::first each k has that many keys more. Throws if
// sizes do not fit.
Tensor table_estimate(const Tensor& bias, const PriorInputs& prior, const PriorInputs& means,
                      const Visibility& visible, int64_t units = 0, double floor = 0);

// ---- image.cpp
// [B, H, T, c W] -> [B, before + T + after, W, H c], channels last: feature i W + w of head h
// becomes channel h c + i of column w. Rows of the halo and of padding (row t >= length) are 0.
Tensor image_from_heads(const Tensor& x, int64_t W, const Halo& halo, const Tensor& lengths);
// A table [H, K] as every row of every sequence: [batch, H, rows, K].
Tensor rows_from_table(const Tensor& table, int64_t batch, int64_t rows);
// [B, H, T, K]: softmax over the columns that have a key, 0 elsewhere.
Tensor column_softmax(const Tensor& scores, const Visibility& visible);
// Off the tape: [B, T, d], the d x d identity resampled to every sequence's length, 0 at padding
// (math::resampled_identity).
Tensor resampled_identity(const Shape& shape, bool nearest, const Tensor& lengths, Dtype dtype,
                          Device device);
// The same for one row [B, H, 1, K] of width[b] keys, i64 [B].
Tensor column_softmax_step(const Tensor& scores, const Tensor& width);
// Its logarithm, 0 at the columns that have no key. Composed of primitives.
Tensor column_log_softmax(const Tensor& scores, const Visibility& visible);
// Number of keys of each column of T rows, 0 at padding, with the type and device of `like`:
// [B, 1, T, K], or [1, 1, T, K] without lengths.
Tensor column_sizes(const Visibility& visible, int64_t T, int64_t K, const Tensor& like);

// ---- mix.cpp
// s_mix s_prob c + (1 - s_mix) average, heads concatenated: [B, T, H d], rows of padding 0.
// (s_prob, s_mix) = sigmoid(gates [B, H, T, 2]); c [B, H, T, d], average [B, G, T, d].
Tensor mix_outputs(const Tensor& c, const Tensor& average, const Tensor& gates,
                   const Visibility& visible);
// Bidirectional C_avg [B, H, T, d]: sum_j i_j v_j, i = the mean over valid rows of the estimate
// [B, H, T, K], widened to keys and normalised to sum 1 (the normaliser is differentiated); v
// [B, G, T, d].
Tensor estimate_average(const Tensor& estimate, const Tensor& v, const Visibility& visible);

}  // namespace brine
