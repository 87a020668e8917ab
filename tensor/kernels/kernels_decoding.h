// The kernels of decoding: one new token of every sequence against what the tokens before it left.
// See kernel.h for the contract. B sequences, each with a length of its own; S = room for tokens.
// The bits of a sequence depend neither on the other sequences nor on how many there are.
#pragma once

#include "tensor/kernels/kernels.h"

namespace brine {

// ---- few rows (cpu/thin_linear.cpp)
// y [R, O] = x [R, I] w [O, I]^T + b [O] (b may be undefined): every row of w is read once. w is
// strided in rows. A row of y has the same bits whatever R is.
BRINE_KERNEL(thin_linear, Tensor y, Tensor x, Tensor w, Tensor b)
inline constexpr int64_t kFewRows = 32;  // up to so many rows linear() is thin_linear()
inline bool is_thin(const Tensor& y, const Tensor& x, const Tensor& w) {
  return y.dtype() == Dtype::f32 && x.dtype() == Dtype::f32 && w.dtype() == Dtype::f32 &&
         x.is_contiguous() && y.is_contiguous() && w.stride(1) == 1 && y.dim(0) <= kFewRows;
}

// ---- caches (cpu/cached_attention.cpp)
// cache [B, H, S, d] takes row [B, H, 1, d] at place at[b]; i64 [B].
BRINE_KERNEL(append_row, Tensor cache, Tensor row, Tensor at)
// y [B, H, d] = softmax(scale q . k_j) v_j over the keys first[b] <= j < last[b]; i64 [B].
// q [B, H, 1, d], k and v [B, H, S, d].
BRINE_KERNEL(cached_attention, Tensor y, Tensor q, Tensor k, Tensor v, Tensor first, Tensor last,
             double scale)
// sums f64 [B, H, d] += v [B, H, 1, d]; y = sums / counts[b], i64 [B].
BRINE_KERNEL(running_mean_step, Tensor y, Tensor sums, Tensor v, Tensor counts)

// ---- the Performer's running sums (cpu/linear_attention.cpp, cpu/linear_attention_step.cpp)
// state [B, H, m, e] and sums f64 [B, H, m] = what the linear attention of kernels_performer.h
// has summed up behind the last of L_b keys. identity [P, i].
BRINE_KERNEL(linear_attention_state, Tensor state, Tensor sums, Tensor phi_k, Tensor identity,
             Tensor v, Visibility visible)
// Takes in the key of a new token, then y [B, H, 1, e] as linear_attention gives it for its query.
// phi_q, phi_k [B, H, 1, m], v [B, H, 1, d]; identity [P, i], whose row at[b] is the token's.
BRINE_KERNEL(linear_attention_step, Tensor y, Tensor state, Tensor sums, Tensor phi_q, Tensor phi_k,
             Tensor identity, Tensor v, Tensor at, double eps)

// ---- the Performer's prior (cpu/prior_step.cpp)
// performer_prior of one query per sequence, phi_q [B, H, 1, m], that sees width[b] keys, whose
// features are the first rows of phi_k [B, H, S, m]. borders f64 [B, H, K + 1, >= m] holds the sums
// of the keys before each column's first for a width of at[b] keys, columns from m on 0; both move
// to width[b]; at[b] = 0: they are not read. at, width i64 [B], at <= width.
BRINE_KERNEL(performer_prior_step, Tensor y, Tensor borders, Tensor at, Tensor scores, Tensor gain,
             Tensor phi_q, Tensor phi_k, Tensor width)
// Columns that sums of m features take: whole vectors of the widest kind.
inline int64_t border_columns(int64_t m) { return (m + 7) / 8 * 8; }

// ---- convolution by rows (cpu/conv_row.cpp)
// Rows of an image as they come: window [B, R, W + 2 margin, C] moves up by one row and takes
// row [B, W, C] as its last; the margins on both sides stay 0. Windows are strided in B.
BRINE_KERNEL(push_row, Tensor window, Tensor row, int64_t margin)
// Weights [O, C, kT, kW] in the order that convolve_row reads them, [kT, kW, C, O + spare].
BRINE_KERNEL(pack_row_weights, Tensor packed, Tensor w)
inline int64_t packed_outputs(int64_t O) { return (O + 15) / 16 * 16; }  // O + spare
// y [B, W, O] = the newest row of a causal conv2d: cross-correlation of the window, whose R =
// (kT - 1) dilation + 1 rows end with the newest; margin = (kW - 1) / 2 dilation. b may be
// undefined.
BRINE_KERNEL(convolve_row, Tensor y, Tensor window, Tensor packed, Tensor b, int64_t dilation,
             bool relu)

}  // namespace brine
