// Attention on the entries of a sparse mask.
#include <cmath>

#include "autograd/compute_type.h"
#include "autograd/ops_attention.h"
#include "tensor/base/stored.h"
#include "tensor/kernels/attention.h"
#include "tensor/meter/cost_meter.h"

namespace brine {

Tensor sparse_attention(const Tensor& q, const Tensor& k, const Tensor& v, const FlatCsr& csr,
                        Tensor* probabilities) {
  check_csr("sparse_attention", csr, q, k);
  check(v.shape() == k.shape() && v.dtype() == k.dtype(), "sparse_attention: v must be ", k.dtype(),
        " ", k.shape(), ", got ", v.dtype(), " ", v.shape());
  // Keys and values of a cache may be stored in 16 bits.
  const bool stored = q.dtype() != k.dtype();
  check(can_store(q.dtype(), k.dtype()), "sparse_attention: q is ", q.dtype(), ", k is ",
        k.dtype());
  check(!stored || !(wants_grad(q) || wants_grad(k) || wants_grad(v)),
        "sparse_attention: no gradients of q in ", q.dtype(), " with keys in ", k.dtype());
  check(q.dim(3) > 0, "sparse_attention: heads of size 0");
  // Every entry gathers a row of K and of V, and in the backward pass of Q too: rounded once, the
  // rows are half as long. This is not done on a CPU: conversion to f32 costs more than the
  // reads it saves. It is not done for a few rows (decoding) either: they gather less than rounding
  // all keys would read.
  const ProductInput taken{q.device().is_cuda() ? product_type(q.dtype(), q.dim(2)) : q.dtype()};
  auto rounded = [&](const Tensor& x) {
    return stored ? x.detach().contiguous() : taken(x.detach()).contiguous();
  };
  Tensor whole = q.detach().contiguous(), xk = rounded(k), xv = rounded(v);
  Tensor y = Tensor::like(whole), p = Tensor::empty({csr.entries()}, q.dtype(), q.device());
  double scale = 1 / std::sqrt(double(q.dim(3)));
  BRINE_CALL(y, sparse_attention, y, p, whole, xk, xv, csr, scale);
  count_macs(2.0 * double(csr.entries()) * double(q.dim(3)));
  if (probabilities) *probabilities = p;
  const bool kept = wants_grad(q) || wants_grad(k) || wants_grad(v);
  Tensor xq = kept ? taken(whole) : whole;
  return record(
      "sparse_attention", y, {q, k, v},
      [=](const Tensor& dy, Gradients& grads) {
        auto fresh = [&](int input, const Tensor& x) {
          return grads.wanted(input) ? Tensor::empty(x.shape(), dy.dtype(), dy.device()) : Tensor();
        };
        Tensor dq = fresh(0, xq), dk = fresh(1, xk), dv = fresh(2, xv);
        BRINE_CALL(xq, sparse_attention_backward, dq, dk, dv, dy, xq, xk, xv, p, csr, scale);
        if (dq.defined()) grads.set(0, dq);
        if (dk.defined()) grads.set(1, dk);
        if (dv.defined()) grads.set(2, dv);
      },
      {xq, xk, xv, p, csr.row_pointers, csr.head_offsets, csr.columns});
}

}  // namespace brine
