// The public, differentiable ops: the one API page of the library. Layers use nothing else.
//
// Shapes are checked here, once; an error names the op, what it got and what it wanted. Every op
// takes f32 or f64 tensors of one type unless it says otherwise and returns a fresh tensor.
// The ops from which a new method is composed, with C++ operators: ops_primitives.h.
#pragma once

#include "autograd/node.h"
#include "autograd/ops_conv.h"
#include "autograd/ops_performer.h"
#include "autograd/ops_primitives.h"
#include "autograd/ops_sparse.h"
#include "tensor/kernels/kernels.h"

namespace brine {

// ---- shape (autograd/shape.cpp)
Tensor reshape(const Tensor& x, const Shape& shape);                     // copies only when it must
Tensor permute(const Tensor& x, std::initializer_list<int> axes);        // a contiguous copy
Tensor slice(const Tensor& x, int axis, int64_t start, int64_t length);  // a contiguous copy
Tensor concat_last(const Tensor& a, const Tensor& b);  // [R, A], [R, B] -> [R, A + B]
Tensor cast(const Tensor& x, Dtype dtype);             // between float types
// [B, T, H d] -> [B, H, T, d] and back; for a packed projection [B, T, P H d], part p of P.
Tensor split_heads(const Tensor& x, int64_t heads, int64_t part = 0, int64_t parts = 1);
Tensor merge_heads(const Tensor& x);

// ---- elementwise (autograd/elementwise.cpp)
Tensor add(const Tensor& a, const Tensor& b);  // add, sub and mul broadcast
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor scale(const Tensor& x, double factor);
Tensor relu(const Tensor& x);
Tensor gelu(const Tensor& x);  // exact: x Phi(x)
Tensor sigmoid(const Tensor& x);
Tensor tanh(const Tensor& x);
Tensor dropout(const Tensor& x, double p, RandomStream& random);  // identity when p = 0
Tensor scale_rows(const Tensor& x, const Tensor& s);              // x [R..., C], s [R...]
Tensor zero_padding(const Tensor& x, const Tensor& lengths);      // x [B, T, ...], lengths i64 [B]
// y, whose backward also sends the gradient 1 to the scalar `loss`: a loss computed inside a layer
// joins the walk backward without leaving the layer's recompute region.
Tensor attach_loss(const Tensor& y, const Tensor& loss);

// ---- reductions (autograd/reduce.cpp)
Tensor sum(const Tensor& x);                   // -> [1]
Tensor dot(const Tensor& a, const Tensor& b);  // sum of a b -> [1]
Tensor running_mean(const Tensor& x);          // [..., T, C]: row t = mean of rows 0..t
// Sum over rows r with weight[r] != 0 of weight[r] |a_r - b_r|^2 -> [1]; weight [R] is constant.
Tensor squared_distance(const Tensor& a, const Tensor& b, const Tensor& weight);

// ---- products (autograd/matmul.cpp)
Tensor matmul(const Tensor& a, const Tensor& b, bool ta = false, bool tb = false,
              double alpha = 1);                                   // [N..., R, K] [N..., K, C]
Tensor linear(const Tensor& x, const Tensor& w, const Tensor& b);  // x [R..., I], w [O, I], b [O]

// ---- norm, softmax, embedding, loss (norm.cpp, softmax.cpp, embedding.cpp, loss.cpp)
Tensor layernorm(const Tensor& x, const Tensor& w, const Tensor& b, double eps = 1e-5);
Tensor softmax(const Tensor& scores, double scale, const Visibility& visible);  // [B, H, T, S]
// softmax(q k^T / sqrt(d)) v over the visible keys by tiles, O(T) memory: q, k, v [B, H, T, d] ->
// [B, T, H d], heads side by side; rows that see no key are 0 (autograd/flash.cpp).
Tensor flash_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                       const Visibility& visible);
Tensor embedding(const Tensor& table, const Tensor& ids);          // ids i32 [R...] -> [R..., C]
Tensor cross_entropy(const Tensor& logits, const Tensor& target);  // [R, V], i32 [R] -> [R]
// Rows KL(teacher || student) over the vocabulary; see autograd/loss.cpp. -> [R]
struct TopLogits {
  Tensor values;  // [R, n] the teacher's n largest logits, or all V of them (ids undefined)
  Tensor ids;     // i32 [R, n]
  Tensor lse;     // [R] log-sum-exp of the teacher's whole row (values may be a part of it)
};
Tensor kl_logits(const Tensor& logits, const TopLogits& teacher);

}  // namespace brine
