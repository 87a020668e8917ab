// Every kernel of a transformer, once (those of SEA: kernels_attention.h). See kernel.h for the
// contract. R stands for all leading axes together; f = f32 or f64, the same for all arguments.
#pragma once

#include "tensor/kernels/kernel.h"
#include "tensor/random.h"

namespace brine {

// Which keys a row sees. Row t of sequence b sees w = 0 keys when t >= L_b, else t + 1 (causal) or
// L_b keys, ordinals 0..w-1. `lengths` is i64 [B]; undefined means L = T.
struct Visibility {
  bool causal = true;
  Tensor lengths = {};
};

// ---- elementwise (cpu/elementwise.cpp; copy and fill: cpu/copy.cpp)
// y = x, any strides on both sides, same shape, any types (floats round to nearest even).
BRINE_KERNEL(copy, Tensor y, Tensor x)
BRINE_KERNEL(fill, Tensor y, double value)    // strided
BRINE_KERNEL(accumulate, Tensor y, Tensor x)  // strided, adds: y += x, same shape and float type
BRINE_KERNEL(add, Tensor y, Tensor a, Tensor b)
BRINE_KERNEL(sub, Tensor y, Tensor a, Tensor b)
BRINE_KERNEL(mul, Tensor y, Tensor a, Tensor b)
// y = alpha x + beta y; y is not read when beta = 0. y may be x.
BRINE_KERNEL(axpby, Tensor y, Tensor x, double alpha, double beta)
BRINE_KERNEL(relu, Tensor y, Tensor x)
BRINE_KERNEL(relu_backward, Tensor dx, Tensor dy, Tensor y)
BRINE_KERNEL(gelu, Tensor y, Tensor x)
BRINE_KERNEL(gelu_backward, Tensor dx, Tensor dy, Tensor x)
BRINE_KERNEL(sigmoid, Tensor y, Tensor x)
BRINE_KERNEL(sigmoid_backward, Tensor dx, Tensor dy, Tensor y)
BRINE_KERNEL(tanh, Tensor y, Tensor x)
BRINE_KERNEL(tanh_backward, Tensor dx, Tensor dy, Tensor y)
// y = x / (1 - p) where uniform(i) >= p, else 0. Backward is the same call on dy.
BRINE_KERNEL(dropout, Tensor y, Tensor x, double p, RandomSlice random)
// y [R, C] = x [R, C] s [R]
BRINE_KERNEL(scale_rows, Tensor y, Tensor x, Tensor s)
// Rows at or beyond a sequence's length become 0: x [B, T, ...], lengths i64 [B].
BRINE_KERNEL(zero_padding, Tensor y, Tensor x, Tensor lengths)

// ---- reductions (cpu/reduce.cpp), in fixed pieces, accumulated in f64
BRINE_KERNEL(sum_all, Tensor y, Tensor x)             // y [1]
BRINE_KERNEL(sum_rows, Tensor y, Tensor x)            // adds: y [C] += sum of x [R, C]
BRINE_KERNEL(dot_rows, Tensor y, Tensor a, Tensor b)  // y [R] = sum_c a[R, c] b[R, c]
// y [1] = sum of weight[r] |a_r - b_r|^2 over the rows with weight[r] != 0; a, b [R, C].
BRINE_KERNEL(squared_distance, Tensor y, Tensor a, Tensor b, Tensor weight)
// da = 2 dy weight (a - b), db = -da, 0 where weight is 0; either may be undefined. dy [1].
BRINE_KERNEL(squared_distance_backward, Tensor da, Tensor db, Tensor dy, Tensor a, Tensor b,
             Tensor weight)
BRINE_KERNEL(square_sum, Tensor y, Tensor x)       // y f64 [1]
BRINE_KERNEL(count_nonfinite, Tensor y, Tensor x)  // y i64 [1]
// y [R, T, C], row t = mean of rows 0..t; running sum in f64. Backward: dx of it.
BRINE_KERNEL(running_mean, Tensor y, Tensor x)
BRINE_KERNEL(running_mean_backward, Tensor dx, Tensor dy)

// ---- matmul (cpu/matmul.cpp)
// y [N..., R, C] = alpha op(a) op(b) + beta y; op = transpose of the last two axes when the flag is
// set. a, b, y are strided, their last or last but one stride must be 1 (y: the last). Leading axes
// are equal, or of size 1 in a or b (shared). a and b may be bf16 or f16 (y is f32).
BRINE_KERNEL(matmul, Tensor y, Tensor a, Tensor b, bool ta, bool tb, double alpha, double beta)
// y [R, O] = x [R, I] w [O, I]^T + b [O] (b may be undefined); w is strided in rows.
BRINE_KERNEL(linear, Tensor y, Tensor x, Tensor w, Tensor b)

// ---- norm (cpu/norm.cpp): over the last axis, x [R, C], w and b [C], mean and rstd [R]
BRINE_KERNEL(layernorm, Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor w, Tensor b,
             double eps)
// dw and db [C] are added to; any of dx, dw, db may be undefined (not wanted).
BRINE_KERNEL(layernorm_backward, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w,
             Tensor mean, Tensor rstd)

// ---- softmax (cpu/softmax.cpp)
// y [B, H, T, S] = softmax(scale x) over the visible keys, 0 elsewhere; a row that sees none is 0.
BRINE_KERNEL(softmax, Tensor y, Tensor x, double scale, Visibility visible)
BRINE_KERNEL(softmax_backward, Tensor dx, Tensor dy, Tensor y, double scale)

// ---- losses over the vocabulary (cpu/loss.cpp)
// loss [R] = lse - logits[target], lse [R]; target i32 [R], -1 = ignored (loss 0).
BRINE_KERNEL(cross_entropy, Tensor loss, Tensor lse, Tensor logits, Tensor target)
// dlogits [R, V] = (softmax - onehot) dloss [R]; dlogits may be logits (in place).
BRINE_KERNEL(cross_entropy_backward, Tensor dlogits, Tensor dloss, Tensor logits, Tensor lse,
             Tensor target)

BRINE_KERNEL(log_sum_exp, Tensor y, Tensor x)  // y [R] of x [R, V]
// KL(teacher || student) of each row: loss [R], from the student's logits [R, V] and the teacher's
// values [R, n] (log p = value - teacher_lse) for the ids i32 [R, n]; undefined ids: n = V. With
// ids, the teacher's unlisted mass is one bucket, held against the student's mass off the ids.
// lse and unlisted [R]: log-sum-exp of the student's row, and of the row without the ids.
BRINE_KERNEL(kl_logits, Tensor loss, Tensor lse, Tensor unlisted, Tensor logits, Tensor values,
             Tensor ids, Tensor teacher_lse)
// dlogits may be logits (in place). A row whose dloss is 0 gets zeros, whatever it holds.
BRINE_KERNEL(kl_logits_backward, Tensor dlogits, Tensor dloss, Tensor logits, Tensor lse,
             Tensor unlisted, Tensor values, Tensor ids, Tensor teacher_lse)

// ---- embedding (cpu/embedding.cpp)
BRINE_KERNEL(embedding, Tensor y, Tensor table, Tensor ids)             // y [R, C], ids i32 [R]
BRINE_KERNEL(embedding_backward, Tensor dtable, Tensor dy, Tensor ids)  // adds

// ---- optimizer (cpu/optimizer.cpp)
struct AdamwStep {
  double learning_rate = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  double grad_scale = 1;  // multiplies the gradient first (clip, accumulation)
  int64_t step = 1;       // counts from 1, for the bias correction
};
// One pass over a range of the flat buffers, all [n] of one type: moments m and v, parameter w.
// Decoupled decay (Loshchilov and Hutter 2019): w -= lr (m^ / (sqrt(v^) + eps) + decay w).
BRINE_KERNEL(adamw, Tensor w, Tensor m, Tensor v, Tensor g, AdamwStep step)

}  // namespace brine
