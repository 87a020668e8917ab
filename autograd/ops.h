// The public ops of dense layers, and the includes of the other op headers.
//
// Layers use these headers only. An op checks its shapes; an error names the op, what it got and
// what it needs. Every op takes f32 or f64 tensors of one type unless it says otherwise, returns a
// new tensor and is differentiable unless it is "off the tape". A file name in a section is that of
// the family in autograd/. The primitives for new methods, with C++ operators: ops_primitives.h.
#pragma once

#include "autograd/node.h"
#include "autograd/ops_attention.h"
#include "autograd/ops_conv.h"
#include "autograd/ops_estimator.h"
#include "autograd/ops_primitives.h"
#include "autograd/ops_teacher.h"
#include "tensor/types.h"

namespace brine {

// ---- copy.cpp: shapes, slices, heads, rows, types
Tensor reshape(const Tensor& x, const Shape& shape);               // copies only when necessary
Tensor permute(const Tensor& x, std::initializer_list<int> axes);  // a contiguous copy
Tensor slice(const Tensor& x, int axis, int64_t start, int64_t length);  // a contiguous copy
// [B, T, H d] -> [B, H, T, d] and back; or heads first, first + 1... of a packed [B, T, of d].
Tensor split_heads(const Tensor& x, int64_t heads, int64_t first = 0, int64_t of = 0);
Tensor merge_heads(const Tensor& x);
// [B, G, T, d] -> [B, G times, T, d]: head h is the group h / times.
Tensor repeat_heads(const Tensor& x, int64_t times);
// [B, H, T, C] -> rows 0, step, 2 step...; and the inverse: row t = row floor(t / step) of x.
Tensor every_nth_row(const Tensor& x, int64_t step);
Tensor repeat_rows(const Tensor& x, int64_t step, int64_t rows);
// to = from, of the same shape, off the tape; `to` may be a part of a larger tensor.
void copy_into(const Tensor& to, const Tensor& from);
// Every element of `to` = value, off the tape.
void fill(const Tensor& to, double value);

// ---- elementwise.cpp
Tensor add(const Tensor& a, const Tensor& b);  // add, sub and mul broadcast
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor scale(const Tensor& x, double factor);
Tensor activate(const Tensor& x, Activation f);
inline Tensor relu(const Tensor& x) { return activate(x, Activation::relu); }
inline Tensor gelu(const Tensor& x) { return activate(x, Activation::gelu); }  // exact: x Phi(x)
// The approximation by tanh, GPT-2's gelu_new.
inline Tensor gelu_tanh(const Tensor& x) { return activate(x, Activation::gelu_tanh); }
inline Tensor silu(const Tensor& x) { return activate(x, Activation::silu); }  // x sigmoid(x)
Tensor dropout(const Tensor& x, double p, RandomStream& random);  // identity when p = 0
Tensor scale_rows(const Tensor& x, const Tensor& s);              // x [R..., C], s [R...]
Tensor zero_padding(const Tensor& x, const Tensor& lengths);      // x [B, T, ...], lengths i64 [B]
// Returns y; backward also sends the gradient 1 to the scalar `loss`. A loss computed inside a
// layer thus joins the backward pass without leaving the layer's recompute region.
Tensor attach_loss(const Tensor& y, const Tensor& loss);

// ---- reduce.cpp
Tensor sum(const Tensor& x);                   // -> [1]
Tensor dot(const Tensor& a, const Tensor& b);  // sum of a b -> [1]
// Sum over rows r with weight[r] != 0 of weight[r] |a_r - b_r|^2 -> [1]; weight [R] is constant.
Tensor squared_distance(const Tensor& a, const Tensor& b, const Tensor& weight);
// Off the tape: y [C] += sum over the rows of x [R, C], both contiguous; the sum of squares -> f64
// [1]; the number of elements that are NaN or infinite.
void add_sum_of_rows(const Tensor& y, const Tensor& x);
Tensor square_sum(const Tensor& x);
int64_t count_nonfinite(const Tensor& x);

// ---- running_mean.cpp
Tensor running_mean(const Tensor& x);  // [..., T, C]: row t = mean of rows 0..t
// Off the tape, one more row: sums f64 [B, G, d] += v [B, G, 1, d] -> their mean; counts i64 [B] is
// the number of rows including this one.
Tensor running_mean_step(const Tensor& sums, const Tensor& v, const Tensor& counts);

// ---- matmul.cpp
Tensor matmul(const Tensor& a, const Tensor& b, bool ta = false, bool tb = false,
              double alpha = 1);                                   // [N..., R, K] [N..., K, C]
Tensor linear(const Tensor& x, const Tensor& w, const Tensor& b);  // x [R..., I], w [O, I], b [O]
Tensor linear_in_out(const Tensor& x, const Tensor& w, const Tensor& b);  // the same, w [I, O]
// activate(linear(x, w, b), f), bit for bit, where f is applied to tiles of the product.
Tensor linear_activation(const Tensor& x, const Tensor& w, const Tensor& b, Activation f);
// In these, and in embedding(), w may be stored in bf16 or f16 for x (y) in f32: its exact values
// in half the memory; then there are no gradients. a w_a^T + b w_b^T + bias with w [O, A + B] =
// [w_a ; w_b]: the linear layer of [a ; b] without making [a ; b]. a [R..., A], b [R..., B]; or a
// [B, H, T, A] and b [B, G, T, B] of G < H groups of heads, whose product is computed once per
// group.
Tensor linear_pair(const Tensor& a, const Tensor& b, const Tensor& w, const Tensor& bias);
// x [B, H, R, n] times the keys or values kv [B, G, S, d] of each head's group h G / H, transposed
// if set: [B, H, R, S] or [B, H, R, d]. The rows of a group's heads are the rows of one product, so
// kv is not copied.
Tensor group_matmul(const Tensor& x, const Tensor& kv, bool transposed);

// ---- thin_linear.cpp
// linear() of few rows, off the tape, w as there: b may be undefined; the bits of a row do not
// depend on the other rows.
Tensor thin_linear(const Tensor& x, const Tensor& w, const Tensor& b);

// ---- norm.cpp, softmax.cpp, embedding.cpp
Tensor layernorm(const Tensor& x, const Tensor& w, const Tensor& b, double eps = 1e-5);
Tensor rmsnorm(const Tensor& x, const Tensor& w, double eps = 1e-6);  // x w / root mean square
// The sum of a residual connection and its norm, from one pass over the rows; bit for bit add() and
// the norm of it.
struct NormedSum {
  Tensor sum, normed;
};
NormedSum add_layernorm(const Tensor& x, const Tensor& residual, const Tensor& w, const Tensor& b,
                        double eps = 1e-5);
NormedSum add_rmsnorm(const Tensor& x, const Tensor& residual, const Tensor& w, double eps = 1e-6);
Tensor softmax(const Tensor& scores, double scale, const Visibility& visible);  // [B, H, T, S]
// [B, H, T, S] -> softmax(scale scores) where the u8 mask of the same shape is not 0, 0 elsewhere.
Tensor masked_softmax(const Tensor& scores, const Tensor& mask, double scale = 1);
Tensor embedding(const Tensor& table, const Tensor& ids);  // ids i32 [R...] -> [R..., C]

// ---- rotary.cpp
// Rotary positions: of row t of x [B, H, T, d] the features i and n + i are rotated by the angle
// (first[b] + t) frequencies[i], those from 2 n on are unchanged. frequencies f64 [n] and first i64
// [B] (undefined = 0) are on the CPU.
Tensor rotary(const Tensor& x, const Tensor& frequencies, const Tensor& first = {});
// theta^(-2 i / features) for the pairs i of that many features: f64 [features / 2].
Tensor rotary_frequencies(int64_t features, double theta);

// ---- loss.cpp
Tensor cross_entropy(const Tensor& logits, const Tensor& target);  // [R, V], i32 [R] -> [R]
// Rows KL(teacher || student) over the vocabulary -> [R].
Tensor kl_logits(const Tensor& logits, const TopLogits& teacher);

// ---- optimizer.cpp
// One step over w, its moments m and v and its gradient g, all [n], in place and off the tape.
void adamw(const Tensor& w, const Tensor& m, const Tensor& v, const Tensor& g,
           const AdamwStep& step);

}  // namespace brine
