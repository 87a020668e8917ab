// Kernels of dense layers: copies, elementwise maps, sums, products, normalisation, softmax, losses
// over a vocabulary, embeddings and the optimizer. See kernel.h for the contract.
//
// Each section is a family; its files in cpu/, cuda/, autograd/ and tests/ have its name. R is the
// product of all leading axes. Types are f32 or f64, the same for all arguments, unless a comment
// says otherwise.
#pragma once

#include "tensor/base/random.h"
#include "tensor/base/stored.h"
#include "tensor/kernels/kernel.h"
#include "tensor/types.h"

namespace brine {

// ---- copy: any strides
// y = x, same shape, any types (floats round to nearest even).
BRINE_KERNEL(copy, Tensor y, Tensor x)
BRINE_KERNEL(fill, Tensor y, double value)
BRINE_KERNEL(accumulate, Tensor y, Tensor x)  // adds: y += x, same shape and float type

// ---- elementwise: contiguous tensors of one size
BRINE_KERNEL(add, Tensor y, Tensor a, Tensor b)
BRINE_KERNEL(sub, Tensor y, Tensor a, Tensor b)
BRINE_KERNEL(mul, Tensor y, Tensor a, Tensor b)
// y = alpha x + beta y; y is not read when beta = 0. y may be x.
BRINE_KERNEL(axpby, Tensor y, Tensor x, double alpha, double beta)
BRINE_KERNEL(activation, Tensor y, Tensor x, Activation f)  // y may be x
// From y for relu, from x for the others.
BRINE_KERNEL(activation_backward, Tensor dx, Tensor dy, Tensor saved, Activation f)
// y = x / (1 - p) where uniform(i) >= p, else 0. Backward is the same call on dy.
BRINE_KERNEL(dropout, Tensor y, Tensor x, double p, RandomSlice random)
// Rows at or beyond a sequence's length become 0: x [B, T, ...], lengths i64 [B]; y may be x.
BRINE_KERNEL(zero_padding, Tensor y, Tensor x, Tensor lengths)

// ---- reduce: sums in pieces of fixed size, accumulated in f64
BRINE_KERNEL(sum_all, Tensor y, Tensor x)          // y [1]
BRINE_KERNEL(sum_rows, Tensor y, Tensor x)         // adds: y [C] += sum of x [R, C]
BRINE_KERNEL(square_sum, Tensor y, Tensor x)       // y f64 [1]
BRINE_KERNEL(count_nonfinite, Tensor y, Tensor x)  // y i64 [1]

// ---- running_mean: running means of rows, with sums in f64
// y [R, T, C], row t = mean of rows 0..t.
BRINE_KERNEL(running_mean, Tensor y, Tensor x)
BRINE_KERNEL(running_mean_backward, Tensor dx, Tensor dy)

// ---- matmul: products of matrices
// y [N..., R, C] = alpha op(a) op(b) + beta y; op = transpose of the last two axes when the flag is
// set. a, b, y are strided, their last or last but one stride must be 1 (y: the last). Leading axes
// are equal, or of size 1 in a or b (shared). a and b may be bf16 or f16 (y is f32).
BRINE_KERNEL(matmul, Tensor y, Tensor a, Tensor b, bool ta, bool tb, double alpha, double beta)
// y [R, O] = x [R, I] w [O, I]^T + b [O] (b may be undefined); w is strided in rows, and may be
// bf16 or f16 for x in f32.
BRINE_KERNEL(linear, Tensor y, Tensor x, Tensor w, Tensor b)
// y = f(linear(x, w, b)), with the bits of the two calls; the argument of f is written to `before`
// [R, O] unless that is undefined.
BRINE_KERNEL(linear_activation, Tensor y, Tensor before, Tensor x, Tensor w, Tensor b, Activation f)

// ---- thin_linear: the linear layer of few rows
// As linear(); every row of w is read once. A row of y has the same bits whatever R is.
BRINE_KERNEL(thin_linear, Tensor y, Tensor x, Tensor w, Tensor b)
inline constexpr int64_t kFewRows = 32;  // up to this many rows linear() is thin_linear()
inline bool is_thin(const Tensor& y, const Tensor& x, const Tensor& w) {
  return y.dtype() == Dtype::f32 && x.dtype() == Dtype::f32 && can_store(Dtype::f32, w.dtype()) &&
         x.is_contiguous() && y.is_contiguous() && w.stride(1) == 1 && y.dim(0) <= kFewRows;
}

// ---- norm: over the last axis, x [R, C], w and b [C], mean and rstd [R]
// LayerNorm; RMSNorm where mean and b are undefined: y = x rstd w, rstd = 1 / sqrt(mean of x^2 +
// eps). Of x, or with a residual [R, C] of x + residual, which is written to sum; both undefined
// without.
BRINE_KERNEL(norm, Tensor y, Tensor sum, Tensor mean, Tensor rstd, Tensor x, Tensor residual,
             Tensor w, Tensor b, double eps)
// dw and db [C] are added to; any of dx, dw, db may be undefined (not needed). x is what was
// normalised, mean as above. `more` [R, C], unless undefined, is added to dx.
BRINE_KERNEL(norm_backward, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor more, Tensor x,
             Tensor w, Tensor mean, Tensor rstd)

// ---- rotary: positions as angles
// Row t of sequence b of x [B, H, T, d] at position p = first[b] + t (i64 [B]; undefined = 0):
// features i and n + i, i < n, turn by the angle sign p frequencies[i] (f64 [n], n <= d / 2), the
// others stay. The backward of sign 1 is the same call on dy with -1.
BRINE_KERNEL(rotary, Tensor y, Tensor x, Tensor first, Tensor frequencies, double sign)

// ---- softmax: over the last axis; a row that sees no key is 0
// y [B, H, T, S] = softmax(scale x) over the visible keys, 0 elsewhere.
BRINE_KERNEL(softmax, Tensor y, Tensor x, double scale, Visibility visible)
// y [R, S] = softmax(scale x) over the entries with mask [R, S] != 0 (u8), 0 elsewhere.
BRINE_KERNEL(masked_softmax, Tensor y, Tensor x, Tensor mask, double scale)
// The backward pass of both.
BRINE_KERNEL(softmax_backward, Tensor dx, Tensor dy, Tensor y, double scale)

// ---- loss: over the vocabulary
// loss [R] = lse - logits[target], lse [R]; target i32 [R], -1 = ignored (loss 0).
BRINE_KERNEL(cross_entropy, Tensor loss, Tensor lse, Tensor logits, Tensor target)
// dlogits [R, V] = (softmax - onehot) dloss [R]; dlogits may be logits (in place).
BRINE_KERNEL(cross_entropy_backward, Tensor dlogits, Tensor dloss, Tensor logits, Tensor lse,
             Tensor target)
BRINE_KERNEL(log_sum_exp, Tensor y, Tensor x)  // y [R] of x [R, V]
// KL(teacher || student) of each row: loss [R], from the student's logits [R, V] and the teacher's
// values [R, n] (log p = value - teacher_lse) for the ids i32 [R, n]; undefined ids: n = V. With
// ids, the teacher's unlisted mass is one bucket, compared to the student's mass off the ids.
// lse and unlisted [R]: log-sum-exp of the student's row, and of the row without the ids.
BRINE_KERNEL(kl_logits, Tensor loss, Tensor lse, Tensor unlisted, Tensor logits, Tensor values,
             Tensor ids, Tensor teacher_lse)
// dlogits may be logits (in place). A row whose dloss is 0 gets zeros, whatever it contains.
BRINE_KERNEL(kl_logits_backward, Tensor dlogits, Tensor dloss, Tensor logits, Tensor lse,
             Tensor unlisted, Tensor values, Tensor ids, Tensor teacher_lse)

// ---- top_logits: the part of a teacher's logits that is kept
// values [R, n] = the n largest of each row of x [R, V] in descending order (of equal ones the
// smaller id first), ids i32 [R, n] their indices, lse [R] the log-sum-exp of the whole row. f32.
// Rows with
// values that are not finite give an lse that is not, or the values themselves.
BRINE_KERNEL(top_logits, Tensor values, Tensor ids, Tensor lse, Tensor x)

// ---- embedding: rows of a table
BRINE_KERNEL(embedding, Tensor y, Tensor table, Tensor ids)             // y [R, C], ids i32 [R]
BRINE_KERNEL(embedding_backward, Tensor dtable, Tensor dy, Tensor ids)  // adds

// ---- optimizer: one pass over a range of the flat buffers
// All [n] of one type: parameter w, moments m and v, gradient g.
BRINE_KERNEL(adamw, Tensor w, Tensor m, Tensor v, Tensor g, AdamwStep step)

}  // namespace brine
