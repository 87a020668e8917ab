// The kernels of SEA's estimator, from random features to the scores of columns. See kernel.h for
// the contract and csr.h for which keys a column owns. m random features, e = columns of a value,
// W = columns of an image; rows at or beyond a sequence's length are padding.
#pragma once

#include "tensor/kernels/kernels.h"

namespace brine {

// ---- random features (cpu/features.cpp): phi [B, H, T, m], 0 at padding
// phi = relu(phi) + eps in place, from the projected inputs.
BRINE_KERNEL(relu_features, Tensor phi, double eps, Tensor lengths)
// dx is the gradient of the projected inputs.
BRINE_KERNEL(relu_features_backward, Tensor dx, Tensor dphi, Tensor phi, double eps, Tensor lengths)
// phi = m^-1/2 (exp(phi - |x|^2 / (2 sqrt(d)) - max) + eps) in place; x [B, H, T, d] before the
// projection. max is over the projections of one row, or with `keys` over those of all rows of a
// sequence and head that are no padding.
BRINE_KERNEL(softmax_features, Tensor phi, Tensor x, double eps, Tensor lengths, bool keys)
// dprojected as above; dx [B, H, T, d] = the part of the gradient that goes through |x|^2. The max
// counts as a constant.
BRINE_KERNEL(softmax_features_backward, Tensor dprojected, Tensor dx, Tensor dphi, Tensor phi,
             Tensor x, double eps, Tensor lengths)

// ---- linear attention (cpu/linear_attention.cpp)
// Keys that it takes in at once: products inside, a running state between.
inline constexpr int64_t kLinearAttentionChunk = 48;

// Multiply-adds of its forward pass over one head of T rows, m features and e values: the state
// takes every row in and answers it; a causal chunk of n rows looks into itself, too.
inline double linear_attention_macs(int64_t T, int64_t m, int64_t e, bool causal) {
  double macs = 2.0 * double(T) * double(m) * double(e);
  for (int64_t s = 0; causal && s < T; s += kLinearAttentionChunk) {
    const double n = double(T - s < kLinearAttentionChunk ? T - s : kLinearAttentionChunk);
    macs += n * n * double(m + e);
  }
  return macs;
}
// y [B, H, T, e] = sum_s phi_q(t) . phi_k(s) v(s) / den(t) over the keys s that t sees,
// den(t) [B, H, T] = phi_q(t) . (sum_s phi_k(s) + eps); rows of padding are 0 (den 1).
// The values are [identity ; v]: v [B, H, T, d] and identity [P, i] (row t for token t, P >= T),
// [B, T, i] or undefined; e = i + d.
BRINE_KERNEL(linear_attention, Tensor y, Tensor den, Tensor phi_q, Tensor phi_k, Tensor identity,
             Tensor v, Visibility visible, double eps)
// didentity [P, i] is added to; undefined when not wanted or identity is no table.
BRINE_KERNEL(linear_attention_backward, Tensor dphi_q, Tensor dphi_k, Tensor didentity, Tensor dv,
             Tensor dy, Tensor y, Tensor den, Tensor phi_q, Tensor phi_k, Tensor identity, Tensor v,
             Visibility visible, double eps)

// ---- prior (cpu/prior.cpp)
// y [B, H, R, K] = scores + gain [H] log((w / n_c) mass_c) at the columns c that own n_c > 0 keys,
// mass_c = phi_q(t) . sum of phi_k over the keys of c, divided by the same over all w keys. Row r
// stands for query t = r step of phi_q, phi_k [B, H, T, m]; R = ceil(T / step).
BRINE_KERNEL(performer_prior, Tensor y, Tensor scores, Tensor gain, Tensor phi_q, Tensor phi_k,
             Visibility visible, int64_t step)
// The gradient of scores is dy. dgain [H] is added to.
BRINE_KERNEL(performer_prior_backward, Tensor dgain, Tensor dphi_q, Tensor dphi_k, Tensor dy,
             Tensor gain, Tensor phi_q, Tensor phi_k, Visibility visible, int64_t step)

// ---- columns (cpu/image.cpp)
// y [B, H, T, K] = softmax over the columns that own a key, 0 elsewhere. Its backward:
// softmax_backward with scale 1.
BRINE_KERNEL(column_softmax, Tensor y, Tensor scores, Visibility visible)
// image [B, halo + T + after, W, H c], channels last, from x [B, H, T, c W]: feature i W + w of
// head h is channel h c + i, column w. The halo rows and those of padding (row i >= length) are 0.
BRINE_KERNEL(image_from_heads, Tensor image, Tensor x, int64_t halo, Tensor lengths)
BRINE_KERNEL(image_from_heads_backward, Tensor dx, Tensor dimage, int64_t halo, Tensor lengths)
// y [B, H, T, K]: row t, column c of head h is pixel (t / stride, c W / K) of channel h of the
// image [B, R, W, H].
BRINE_KERNEL(heads_from_image, Tensor y, Tensor image, int64_t stride)
BRINE_KERNEL(heads_from_image_backward, Tensor dimage, Tensor dy, int64_t stride)

}  // namespace brine
