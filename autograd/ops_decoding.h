// Ops of decoding: one new token of every sequence, without a tape. Their bits for one sequence
// depend neither on the others nor on how many there are. See kernels_decoding.h.
#pragma once

#include "autograd/node.h"
#include "tensor/kernels/kernels_decoding.h"

namespace brine {

// to = from, of the same shape; `to` may be a part of a larger tensor.
void copy_into(const Tensor& to, const Tensor& from);

// x [R..., I] w [O, I]^T + b [O], b may be undefined.
Tensor thin_linear(const Tensor& x, const Tensor& w, const Tensor& b);

// cache [B, H, S, d] takes row [B, H, 1, d] at place at[b] (i64 [B]); throws when one is full.
void append_row(const Tensor& cache, const Tensor& row, const Tensor& at);
// softmax(q k^T / sqrt(d)) v over the keys first[b] <= j < last[b] -> [B, H, 1, d].
Tensor cached_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& first,
                        const Tensor& last);
// sums f64 [B, H, d] takes in v [B, H, 1, d] -> their mean, counts i64 [B] rows by now.
Tensor running_mean_step(const Tensor& sums, const Tensor& v, const Tensor& counts);

// The running sums of linear_attention: state [B, H, m, e], sums f64 [B, H, m].
void linear_attention_state(const Tensor& state, const Tensor& sums, const Tensor& phi_k,
                            const Tensor& identity, const Tensor& v, const Visibility& visible);
// -> [B, H, 1, e] for phi_q and phi_k [B, H, 1, m], v [B, H, 1, d]; the token stands at place at[b]
// of the table identity [P, i], which must reach so far.
Tensor linear_attention_step(const Tensor& state, const Tensor& sums, const Tensor& phi_q,
                             const Tensor& phi_k, const Tensor& identity, const Tensor& v,
                             const Tensor& at, double eps);

// The prior of one query each: borders f64 [B, H, K + 1, border_columns(m)] and at i64 [B] move to
// width[b] keys, whose features lie in phi_k [B, H, S, m]; scores [B, H, 1, K].
Tensor performer_prior_step(const Tensor& borders, const Tensor& at, const Tensor& scores,
                            const Tensor& gain, const Tensor& phi_q, const Tensor& phi_k,
                            const Tensor& width);

// phi [..., m] = relu(x R^T d^-1/4) + eps.
Tensor relu_features_step(const Tensor& x, const Tensor& projection, double eps);

}  // namespace brine
