// Kernels of exact attention: tiled, over cached keys, and on the entries of a sparse mask with the
// selection and rows of that mask. See kernel.h for the contract and
// csr.h for the mask. Each section is a family. S = keys; e runs over the entries of a mask in the
// order of csr.columns.
#pragma once

#include "tensor/kernels/kernel.h"
#include "tensor/mask/csr.h"

namespace brine {

// ---- flash_attention: softmax attention by tiles, without a T x T map
// y [B, T, H d] = softmax(scale q k^T) v over the visible keys, heads concatenated; 0 in a row that
// sees none. lse [B, H, T] = log-sum-exp of each row's scaled scores (0 there). q [B, H, T, d], k
// and v [B, G, T, d], which may be bf16 or f16 (then the rest is f32). G divides H: head h reads
// the keys and values of group h G / H.
BRINE_KERNEL(flash_attention, Tensor y, Tensor lse, Tensor q, Tensor k, Tensor v,
             Visibility visible, double scale)
// dq, dk, dv [B, H, T, d] from dy [B, T, H d]; y and lse as they were returned. dk and dv are the
// shares of each head of q: their sums over the heads of a group are the gradients of k and v. Any
// of dq, dk, dv may be undefined (not needed).
BRINE_KERNEL(flash_attention_backward, Tensor dq, Tensor dk, Tensor dv, Tensor dy, Tensor q,
             Tensor k, Tensor v, Tensor y, Tensor lse, Visibility visible, double scale)

// ---- cached_attention: one new query of every sequence; S = positions of a cache
// The bits of a sequence do not depend on the other sequences or their number. With inputs in f32
// the caches may be bf16 or f16.
// cache [B, H, S, d] stores row [B, H, 1, d] at position at[b]; i64 [B].
BRINE_KERNEL(append_row, Tensor cache, Tensor row, Tensor at)
// y [B, H, d] = softmax(scale q . k_j) v_j over the keys first[b] <= j < last[b]; i64 [B].
// q [B, H, 1, d], k and v [B, G, S, d]; G divides H: head h reads group h G / H.
BRINE_KERNEL(cached_attention, Tensor y, Tensor q, Tensor k, Tensor v, Tensor first, Tensor last,
             double scale)

// ---- select: the selected columns of an estimate
// nan_count i64 [1]: NaN among the values of columns that own a key. See csr.h for the rules.
BRINE_KERNEL(select_columns, Tensor selected, Tensor n_sel, Tensor nan_count, Tensor estimate,
             Visibility visible, SelectConfig config)

// ---- csr: selected columns as compressed rows
// csr.row_pointers and csr.head_offsets; then, with csr.columns of that size, the columns.
BRINE_KERNEL(count_csr, FlatCsr csr, Tensor selected, Visibility visible, int64_t k)
BRINE_KERNEL(fill_csr, FlatCsr csr, Tensor selected, Visibility visible, int64_t k)

// ---- sparse_attention: attention on the entries of a mask
// y [B, H, T, d] = sum_e p_e v_key(e), p [entries] = softmax(scale q k) over the entries of one
// (row, head). A head without entries gives 0. q [B, H, T, d], k and v [B, G, S, d]; G divides H:
// head h reads group h G / H. k and v may be bf16 or f16, both (then the rest is f32).
BRINE_KERNEL(sparse_attention, Tensor y, Tensor p, Tensor q, Tensor k, Tensor v, FlatCsr csr,
             double scale)
// dk and dv [B, G, S, d] are summed over the heads of a group. Any of dq, dk, dv may be undefined
// (not needed). q, k and v may be bf16 or f16, all three (then the rest is f32); dv then sums rows
// of dy rounded to that type.
BRINE_KERNEL(sparse_attention_backward, Tensor dq, Tensor dk, Tensor dv, Tensor dy, Tensor q,
             Tensor k, Tensor v, Tensor p, FlatCsr csr, double scale)

}  // namespace brine
