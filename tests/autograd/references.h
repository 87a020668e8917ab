// Fused ops composed from primitives: the references that tests compare the fused ops with, and an
// example of how a method is written in one file.
#pragma once

#include <cmath>

#include "autograd/ops.h"

namespace brine::reference {

// x with an axis of size 1 inserted before `axis`.
inline Tensor insert_axis(const Tensor& x, int axis) {
  Shape shape;
  for (int i = 0; i <= x.rank(); ++i) {
    if (i == axis) shape.push_back(1);
    if (i < x.rank()) shape.push_back(x.dim(i));
  }
  return reshape(x, shape);
}

inline Tensor layernorm(const Tensor& x, const Tensor& w, const Tensor& b, double eps) {
  const Tensor centered = x - mean(x, {-1}, true);
  return centered / sqrt(mean(centered * centered, {-1}, true) + eps) * w + b;
}

// Condition [T, 1] or [B, 1, T, 1]: row t belongs to its sequence.
inline Tensor valid_rows(const Visibility& visible, int64_t T, Device device) {
  const Tensor t = insert_axis(arange(T, Dtype::i64, device), 1);
  if (!visible.lengths.defined()) return less(t, double(T));
  return less(t, reshape(visible.lengths.to(device), {visible.lengths.dim(0), 1, 1, 1}));
}

// Condition that broadcasts to [B, H, T, S]: row t sees key s.
inline Tensor visible_keys(const Visibility& visible, int64_t T, int64_t S, Device device) {
  const Tensor t = insert_axis(arange(T, Dtype::i64, device), 1);
  const Tensor s = arange(S, Dtype::i64, device);
  Tensor seen = visible.causal ? less_equal(s, t) : less(s, double(S));
  if (!visible.lengths.defined()) return seen;
  const Tensor L = reshape(visible.lengths.to(device), {visible.lengths.dim(0), 1, 1, 1});
  return logical_and(seen, logical_and(less(t, L), less(s, L)));
}

// softmax(scale x) over the visible keys of x [B, H, T, S], 0 elsewhere; a row that sees no key is
// 0. The sum of any other row is at least 1, so the limit does not change it.
inline Tensor softmax(const Tensor& x, double scale, const Visibility& visible) {
  const Tensor seen = visible_keys(visible, x.dim(2), x.dim(3), x.device());
  const Tensor y = x * scale;
  const Tensor top = max(where(seen, y, -INFINITY), {-1}, true).detach();
  const Tensor e = where(seen, exp(where(seen, y - top, 0)), 0);
  return e / maximum(sum(e, {-1}, true), 0.5);
}

// q, k, v [B, H, T, d] -> [B, H, T, d]: scores, mask, softmax, weighted values.
inline Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v,
                        const Visibility& visible) {
  const Tensor scores = sum(insert_axis(q, 3) * insert_axis(k, 2), {-1});  // [B, H, T, T]
  const Tensor p = reference::softmax(scores, 1 / std::sqrt(double(q.dim(-1))), visible);
  return sum(insert_axis(p, 4) * insert_axis(v, 2), {3});
}

// relu(x R^T d^-1/4) + eps of x [B, H, T, d] and R [m, d], 0 at padding.
inline Tensor relu_features(const Tensor& x, const Tensor& projection, double eps,
                            const Visibility& visible) {
  const Tensor products = sum(insert_axis(x, 3) * projection, {-1});  // [B, H, T, m]
  const Tensor phi = maximum(products * std::pow(double(x.dim(-1)), -0.25), 0) + eps;
  return where(valid_rows(visible, x.dim(2), x.device()), phi, 0);
}

// elu(x) + 1 (Katharopoulos et al. 2020).
inline Tensor elu_features(const Tensor& x) {
  return where(greater(x, 0), x + 1, exp(minimum(x, 0)));
}

// Causal linear attention of these features, q, k, v [B, H, T, d]: a method in five lines.
inline Tensor elu_attention(const Tensor& q, const Tensor& k, const Tensor& v) {
  const Tensor a = elu_features(q), b = elu_features(k);
  const Tensor state = cumsum(insert_axis(b, 4) * insert_axis(v, 3), 2);  // [B, H, T, d, d]
  return sum(insert_axis(a, 4) * state, {3}) / sum(a * cumsum(b, 2), {-1}, true);
}

// Linear attention of the features phi_q, phi_k [B, H, T, m] to v [B, H, T, d], 0 at padding; eps
// is added to the sums of keys. Causal: the sums over keys are running sums.
inline Tensor linear_attention(const Tensor& phi_q, const Tensor& phi_k, const Tensor& v,
                               const Visibility& visible, double eps) {
  const Tensor valid = valid_rows(visible, v.dim(2), v.device());
  const Tensor keys = where(valid, phi_k, 0);
  const Tensor pairs = insert_axis(keys, 4) * insert_axis(v, 3);  // [B, H, T, m, d]
  auto over_keys = [&](const Tensor& x) {
    return visible.causal ? cumsum(x, 2) : sum(x, {2}, true);
  };
  const Tensor above = sum(insert_axis(phi_q, 4) * over_keys(pairs), {3});
  const Tensor below = sum(phi_q * (over_keys(keys) + eps), {-1}, true);
  return where(valid, above / where(valid, below, 1), 0);
}

}  // namespace brine::reference
