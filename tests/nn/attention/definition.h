// Attention by its definition, in plain loops over doubles: the values that a query sees, averaged
// with the weights that a method gives to pairs of query and key.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/autograd/naive.h"
#include "tests/nn/attention/contract/contract.h"

namespace brine::test {

struct AttentionCase {
  bool causal = true;
  std::vector<int64_t> lengths = {};
  int64_t B = 2, H = 4, G = 2, T = 23, d = 6;

  int64_t length(int64_t b) const { return lengths.empty() ? T : lengths[size_t(b)]; }
  int64_t width(int64_t b, int64_t t) const { return causal ? t + 1 : length(b); }
  int64_t group(int64_t h) const { return h * G / H; }
  Visibility visible() const { return {.causal = causal, .lengths = lengths_of(lengths)}; }
  std::string name() const {
    return join(causal ? "causal" : "full", " T ", T, lengths.empty() ? "" : " with lengths");
  }
  nn::AttentionInput input(double deviation = 1) const {
    return {.q = normal({B, H, T, d}, 1, Dtype::f64, 0, deviation),
            .k = normal({B, G, T, d}, 2, Dtype::f64, 0, deviation),
            .v = normal({B, G, T, d}, 3, Dtype::f64),
            .hidden = {},
            .visible = visible()};
  }
  // A block in f64 with that many positions.
  std::unique_ptr<nn::Attention> make(const std::string& method,
                                      const std::map<std::string, std::string>& settings = {},
                                      int64_t positions = 40) const {
    nn::Init init{.random = {.seed = 3}, .dtype = Dtype::f64, .linear_std = 0.5};
    return method_with(method, settings)
        ->make(init, {.heads = H,
                      .head_size = d,
                      .max_positions = positions,
                      .causal = causal,
                      .kv_heads = G});
  }
};

inline std::vector<AttentionCase> attention_cases() {
  return {{.causal = true},
          {.causal = true, .lengths = {23, 9}},
          {.causal = false},
          {.causal = false, .lengths = {11, 23}},
          {.causal = true, .B = 1, .T = 1},
          {.causal = false, .B = 1, .T = 1}};
}

// The weight of key j for query t of head h of sequence b.
using PairWeight = std::function<double(int64_t b, int64_t h, int64_t t, int64_t j)>;

// [B, T, H d]; v [B, G, T, d]. `more`(b, h, t) is added to the sum of the weights, if given.
inline std::vector<double> attention_by(
    const AttentionCase& c, const Tensor& v, const PairWeight& weight,
    const std::function<double(int64_t b, int64_t h, int64_t t)>& more = {}) {
  const Array value(v);
  std::vector<double> y(size_t(c.B * c.T * c.H * c.d), 0);
  for (int64_t b = 0; b < c.B; ++b) {
    for (int64_t t = 0; t < c.length(b); ++t) {
      for (int64_t h = 0; h < c.H; ++h) {
        double total = more ? more(b, h, t) : 0;
        double* row = y.data() + ((b * c.T + t) * c.H + h) * c.d;
        for (int64_t j = 0; j < c.width(b, t); ++j) {
          const double w = weight(b, h, t, j);
          total += w;
          for (int64_t i = 0; i < c.d; ++i) row[i] += w * value(b, c.group(h), j, i);
        }
        for (int64_t i = 0; i < c.d; ++i) row[i] /= total;
      }
    }
  }
  return y;
}

// The weight exp(q . k / sqrt(d)) of softmax attention.
inline PairWeight softmax_weight(const AttentionCase& c, const nn::AttentionInput& in) {
  return [c, q = Array(in.q), k = Array(in.k)](int64_t b, int64_t h, int64_t t, int64_t j) {
    double score = 0;
    for (int64_t i = 0; i < c.d; ++i) score += q(b, h, t, i) * k(b, c.group(h), j, i);
    return std::exp(score / std::sqrt(double(c.d)));
  };
}

// The mask that a method showed, as numbers [B, H, T, T]: 1 where it keeps a key.
inline Array shown_mask(const AttentionCase& c, const nn::Tap& tap) {
  return Array(observed_mask(tap, c.B, c.H, c.T));
}

// The outputs of tokens after prompts of `prompt` tokens equal the rows of a whole pass of
// sequences of one length, at every option k given for a step.
inline void check_steps(const AttentionCase& c, nn::Attention& block, int64_t prompt,
                        const std::vector<int64_t>& kept = {0}) {
  NoGrad off;
  const nn::AttentionInput all = c.input();
  auto part = [&](int64_t from, int64_t n) -> nn::AttentionInput {
    return {.q = rows(all.q, 2, from, n),
            .k = rows(all.k, 2, from, n),
            .v = rows(all.v, 2, from, n),
            .hidden = {}};
  };
  const auto state = block.make_state({.batch = c.B, .capacity = c.T + 3, .dtype = Dtype::f64});
  if (prompt > 0) {
    nn::AttentionInput first = part(0, prompt);
    first.state = state.get();
    block.forward(first);
  }
  for (int64_t t = prompt; t < c.T; ++t) {
    INFO("prompt " << prompt << " t " << t);
    nn::AttentionInput whole = all, next = part(t, 1);
    whole.options.k = next.options.k = kept[size_t(t) % kept.size()];
    CHECK(close_to_scale(block.step(next, *state), rows(block.forward(whole), 1, t, 1), 1e-13));
  }
}

}  // namespace brine::test
