// The ops of SEA's estimator, in the order in which it uses them. m random features, W = columns
// of an image, K = columns of the estimate; rows at or beyond a sequence's length are padding.
#pragma once

#include "autograd/node.h"
#include "tensor/kernels/kernels.h"

namespace brine {

// ---- random features and linear attention (autograd/performer.cpp)
// phi [B, H, T, m] = relu(x R^T d^-1/4) + eps, 0 at padding. x [B, H, T, d]; the projection
// R [m, d] is constant. Never scale x by d^-1/2 before.
Tensor relu_features(const Tensor& x, const Tensor& projection, double eps, const Tensor& lengths);
// phi = m^-1/2 (exp(x R^T d^-1/4 - |x|^2 / (2 sqrt(d)) - max) + eps), 0 at padding. max, a constant
// for the gradient, is over a row of x R^T d^-1/4, or for keys over a sequence and head: keys see
// each other, so no causal model may use it.
enum class FeatureSide { queries, keys };
Tensor softmax_features(const Tensor& x, const Tensor& projection, double eps,
                        const Tensor& lengths, FeatureSide side);
// y [B, H, T, i + d] = the Performer's attention of phi_q, phi_k [B, H, T, m] to the values
// [identity ; v], 0 at padding. identity is a table [P, i], P >= T, whose row t belongs to token t
// of every head; or [B, T, i], constant; or undefined. eps is added to every entry of the key sum.
Tensor linear_attention(const Tensor& phi_q, const Tensor& phi_k, const Tensor& identity,
                        const Tensor& v, const Visibility& visible, double eps = 1e-6);
// a w_a^T + b w_b^T + bias with w [O, A + B] = [w_a ; w_b]: linear of [a ; b], which is never made.
// a [R..., A], b [R..., B].
Tensor linear_pair(const Tensor& a, const Tensor& b, const Tensor& w, const Tensor& bias);

// ---- scores (autograd/prior.cpp)
// scores [B, H, R, K] + gain [H] log((w / n_c) mass_c) at the columns that own n_c > 0 keys;
// mass_c = the share of the row's linear attention that falls on these keys. Row r is that of
// query r step, R = ceil(T / step).
Tensor performer_prior(const Tensor& scores, const Tensor& gain, const Tensor& phi_q,
                       const Tensor& phi_k, const Visibility& visible, int64_t step = 1);
// [B, H, T, K]: softmax over the columns that own a key, 0 elsewhere.
Tensor column_softmax(const Tensor& scores, const Visibility& visible);
// [B, H, T, C] -> rows 0, step, 2 step...; and back, row t = row floor(t / step) of x.
Tensor every_nth_row(const Tensor& x, int64_t step);
Tensor repeat_rows(const Tensor& x, int64_t step, int64_t rows);

// ---- images (autograd/image.cpp)
// [B, H, T, c W] -> [B, before + T + after, W, H c], channels last: feature i W + w of head h
// becomes channel h c + i of column w. Rows of the halo and of padding (row t >= length) are 0.
struct Halo {
  int64_t before = 0, after = 0;
};
Tensor image_from_heads(const Tensor& x, int64_t W, const Halo& halo, const Tensor& lengths);
// [B, R, W, H] -> [B, H, T, K], nearest neighbour: row floor(t / stride), column floor(c W / K).
Tensor heads_from_image(const Tensor& image, int64_t T, int64_t K, int64_t stride = 1);

}  // namespace brine
