// A method that chooses keys next to attention under an oracle's mask.
#pragma once

#include <functional>

#include "tests/nn/attention/contract/contract.h"
#include "tests/sparse_oracle.h"

namespace brine::test {

using Numbers = std::vector<double>;

// Products of rows of a and b [B, H, T, n]: [B, H, T, T].
inline Numbers products(const Numbers& a, const Numbers& b, int64_t n, const MaskCase& m) {
  Numbers s(size_t(m.B * m.H * m.T * m.T), 0);
  for (int64_t row = 0; row < m.B * m.H * m.T; ++row) {
    for (int64_t j = 0; j < m.T; ++j) {
      for (int64_t c = 0; c < n; ++c)
        s[size_t(row * m.T + j)] +=
            a[size_t(row * n + c)] * b[size_t((row / m.T * m.T + j) * n + c)];
    }
  }
  return s;
}

// [B, H, T, T]: 1 for the min(k, w) keys of each row with the largest scores [B, G, T, T], by
// sorting; the later of equal ones.
inline Numbers largest_scores(const Numbers& scores, const MaskCase& m) {
  const int64_t G = int64_t(scores.size()) / (m.B * m.T * m.T);
  Numbers mask(size_t(m.B * m.H * m.T * m.T), 0);
  each_row(m, [&](int64_t b, int64_t h, int64_t t) {
    std::vector<std::pair<double, int64_t>> order;
    const int64_t row = (b * G + h * G / m.H) * m.T + t;
    for (int64_t j = 0; j < m.width(b, t); ++j) order.push_back({scores[size_t(row * m.T + j)], j});
    std::sort(order.rbegin(), order.rend());
    for (size_t i = 0; i < order.size() && i < size_t(m.k); ++i)
      mask[m.index(b, h, t, order[i].second, m.T)] = 1;
  });
  return mask;
}

// [B, H, T, T]: 1 where a head's row t keeps key j by a rule of positions.
inline Numbers mask_by(const MaskCase& m,
                       const std::function<bool(int64_t b, int64_t t, int64_t j)>& keeps) {
  Numbers mask;
  each_row(m, [&](int64_t b, int64_t, int64_t t) {
    for (int64_t j = 0; j < m.T; ++j) mask.push_back(j < m.width(b, t) && keeps(b, t, j));
  });
  return mask;
}

inline Tensor seen_mask(const nn::Tap& tap, const MaskCase& m) {
  return observed_mask(tap, m.B, m.H, m.T);
}

// The block's output and mask next to those of the oracle's mask.
inline void check_block(Block& block, const MaskCase& m, const Inputs& in,
                        const std::vector<double>& mask) {
  nn::Tap tap(block.name);
  const Tensor y = pass(block, in, m.visible().lengths, {}, {}, &tap).y;
  CHECK(seen_mask(tap, m).to_vector() == mask);
  const std::vector<double> p = naive_attention(in.q.to_vector(), in.k.to_vector(), mask, kSize, m);
  CHECK(close(y.to_vector(), naive_products(p, in.v.to_vector(), kSize, m, true), 1e-12, 1e-12,
              block.name));
}

inline void check_method(const std::string& name, const MaskCase& m, const Inputs& in,
                         const std::vector<double>& mask) {
  Block block = make_block(name, m.causal, Dtype::f64);
  check_block(block, m, in, mask);
}

// Sequences of few and many tokens, full and padded, causal and not.
inline std::vector<MaskCase> rival_cases(int64_t k) {
  std::vector<MaskCase> out = {{.B = 2, .T = 37, .k = k, .lengths = {37, 22}},
                               {.B = 2, .T = 21, .k = k, .lengths = {3, 0}},
                               {.B = 1, .T = 90, .k = k},
                               {.B = 1, .T = 4, .k = k}};
  for (size_t i = 0, n = out.size(); i < n; ++i) {
    out.push_back(out[i]);
    out.back().causal = false;
  }
  for (MaskCase& m : out) m.H = kHeads, m.K = 12;
  return out;
}

// forward() while the model is trained, with gradients of the block's parameters.
struct Trained {
  Tensor y, loss;  // the loss that the method shows, on the tape
};

inline Trained train_pass(Block& block, const Inputs& in, const MaskCase& m) {
  nn::Tap tap(block.name);
  RandomStream random{.seed = 1};
  const Tensor y = block.module->forward({.q = in.q,
                                          .k = in.k,
                                          .v = in.v,
                                          .hidden = in.hidden,
                                          .visible = m.visible(),
                                          .tap = &tap,
                                          .random = &random});
  return {y, tap.has("selection_loss") ? tap.get("selection_loss") : Tensor()};
}

// The loss that a method attaches to its output: its gradients by finite differences, that the
// output sends them to the parameters, and that q, k, v and hidden get none.
inline void check_attached_loss(Block& block, const Inputs& in, const MaskCase& m) {
  std::vector<nn::Module::NamedParameter> parameters = block.module->named_parameters();
  std::vector<Tensor> x;
  for (const auto& p : parameters) x.push_back(p.parameter->value.detach().clone());
  auto loss = [&](In leaves) {
    for (size_t i = 0; i < leaves.size(); ++i) parameters[i].parameter->value = leaves[i];
    return train_pass(block, in, m).loss;
  };
  for (size_t i = 0; i < x.size(); ++i) {
    INFO(parameters[i].path);
    const Tensor dy = Tensor::full({1}, 1, Dtype::f64);
    const Run analytic = run(loss, x, dy, int(i));
    CHECK(largest(analytic.grads[i].to_vector()) > 1e-6);
    const double step = 1e-5;
    for (int64_t e = 0; e < x[i].numel(); e += std::max<int64_t>(1, x[i].numel() / 12)) {
      std::vector<Tensor> moved = x;
      moved[i] = x[i].clone();
      double& element = moved[i].data<double>()[e];
      const double middle = element;
      element = middle + step;
      const double high = loss(moved).item();
      element = middle - step;
      const double low = loss(moved).item();
      const double numeric = (high - low) / (2 * step);
      const double exact = analytic.grads[i].to_vector()[size_t(e)];
      CHECK(std::abs(numeric - exact) <
            1e-6 * std::max(1e-2, largest(analytic.grads[i].to_vector())));
    }
    // The backward pass of the output gives the parameter the same gradient.
    std::vector<Tensor> leaves = x;
    leaves[i] = require_grad(x[i].clone());
    for (size_t n = 0; n < leaves.size(); ++n) parameters[n].parameter->value = leaves[n];
    Inputs tracked{require_grad(in.q.clone()), require_grad(in.k.clone()),
                   require_grad(in.v.clone()), require_grad(in.hidden.clone())};
    const Tensor y = train_pass(block, tracked, m).y;
    backward(y, Tensor::zeros_like(y));
    CHECK(close_to_scale(grad(leaves[i]), analytic.grads[i], 1e-12));
    for (const Tensor& t : {tracked.q, tracked.k, tracked.v, tracked.hidden})
      CHECK((!has_grad(t) || largest(grad(t).to_vector()) == 0));
    // The same where the layer is computed again in the backward pass.
    leaves[i] = require_grad(x[i].clone());
    for (size_t n = 0; n < leaves.size(); ++n) parameters[n].parameter->value = leaves[n];
    auto again = [&](const std::vector<Tensor>& q) {
      return train_pass(block, {q[0], in.k, in.v, in.hidden}, m).y;
    };
    const Tensor z = checkpoint(again, {in.q});
    backward(z, Tensor::zeros_like(z));
    CHECK(same_bits(grad(leaves[i]), analytic.grads[i]));
  }
}

}  // namespace brine::test
