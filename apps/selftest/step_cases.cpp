// One token of every sequence: the kernels of decoding, with the rows of earlier tokens in f32 and
// in 16 bits.
#include "apps/selftest/passed.h"
#include "autograd/ops_units.h"

namespace brine::selftest {
namespace {

constexpr double kSums = 2e-6;  // of a few hundred products in f32, of the largest number

// Rows of earlier tokens in 16 bits where the rest is f32.
Dtype stored(const Place& p, Dtype type) { return p.type == Dtype::f32 ? type : p.type; }

// In f64 rows have the type of the case, so that it runs once.
Case of_rows(const std::string& name, Dtype type, std::function<Inputs(const Place&)> run) {
  return {.name = join(name, " and rows in ", type),
          .f64 = type == Dtype::f32 ? 1e-11 : -1,
          .f32 = kSums,
          .run = std::move(run)};
}

void add_linear_steps(std::vector<Case>& all) {
  all.push_back({.name = "linear_attention_state and linear_attention_step",
                 .f32 = kSums * 2,
                 .run = [](const Place& p) {
                   const int64_t B = 2, H = 4, G = 2, T = 150, m = 36, d = 16;
                   const Tensor state = Tensor::zeros({B, G, m, 2 * d}, p.type, p.device);
                   const Tensor sums = Tensor::zeros({B, G, m}, Dtype::f64, p.device);
                   const Tensor identity = p.normal({T + 3, d}, 4);
                   linear_attention_state(state, sums, p.uniform({B, G, T, m}, 1, 0, 1), identity,
                                          p.normal({B, G, T, d}, 2),
                                          {.causal = true, .lengths = numbers({150, 77})});
                   const Tensor y =
                       linear_attention_step(state, sums, p.uniform({B, H, 1, m}, 3, 0, 1),
                                             p.uniform({B, G, 1, m}, 5, 0, 1), identity,
                                             p.normal({B, G, 1, d}, 6), numbers({150, 77}), 1e-3);
                   return Inputs{y, state, sums};
                 }});
}

void add_prior_steps(std::vector<Case>& all) {
  for (Dtype type : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    // Rows in 16 bits are rounded after every sum: only whole numbers have the same ones on both.
    all.push_back(of_rows("append_to_units and performer_prior_step", type, [=](const Place& p) {
      const int64_t B = 3, H = 4, G = 2, m = 20, K = 5, units = 2, R = 20;
      const Tensor rows = Tensor::zeros({B, G, R, m}, stored(p, type), p.device);
      const Tensor borders = Tensor::zeros({B, G, K + 1, border_columns(m)}, Dtype::f64, p.device);
      const Tensor at = numbers({0, 0, 0});
      Inputs out;
      for (int64_t n = 0; n < 43; ++n) {  // units double twice
        const Tensor row = made({B, G, 1, m}, p,
                                [n](size_t i) { return 1 + double((i * 7 + size_t(n) * 5) % 3); });
        append_to_units(rows, row, numbers({n, n, n}), K, units);
        if (n % 6) continue;
        out.push_back(performer_prior_step(borders, at, p.normal({B, H, 1, K}, uint64_t(n)),
                                           p.normal({H}, 1),
                                           p.uniform({B, H, 1, m}, uint64_t(100 + n), 0.1, 1), rows,
                                           numbers({n + 1, n + 1, n + 1}), 1e-3, units));
      }
      out.insert(out.end(), {rows, borders});
      return out;
    }));
    all.push_back(of_rows("pooled_scores_step", type, [=](const Place& p) {
      const int64_t B = 3, H = 4, G = 2, d = 20, K = 5, S = 60;
      const Tensor keys = p.normal({B, G, S, d}, 1).to(stored(p, type));
      const Tensor borders = Tensor::zeros({B, G, K + 1, border_columns(d)}, Dtype::f64, p.device);
      const Tensor at = numbers({0, 0, 0});
      Inputs out;
      for (int64_t n : {1, 2, 30, 31}) {
        out.push_back(pooled_scores_step(borders, at, p.normal({B, H, 1, d}, uint64_t(n)), keys,
                                         numbers({n, n + 3, 60})));
      }
      out.push_back(borders);
      return out;
    }));
  }
  all.push_back({.name = "sum_units", .run = [](const Place& p) {
                   const Tensor lengths = numbers({70, 3}), units = numbers({4, 2});
                   const Tensor x = p.normal({2, 2, 70, 20}, 1);
                   return Inputs{sum_units(x, lengths, units, 20, Dtype::f64),
                                 sum_units(x, lengths, units, 20, p.type)};
                 }});
}

void add_caches(std::vector<Case>& all) {
  for (Dtype type : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    all.push_back(of_rows("append_row and cached_attention", type, [=](const Place& p) {
      const Tensor k = p.normal({3, 2, 700, 40}, 1).to(stored(p, type));
      const Tensor v = p.normal({3, 2, 700, 40}, 2).to(stored(p, type));
      append_row(k, p.normal({3, 2, 1, 40}, 3), numbers({699, 20, 0}));
      append_row(v, p.normal({3, 2, 1, 40}, 4), numbers({699, 20, 0}));
      return Inputs{k, cached_attention(p.normal({3, 4, 1, 40}, 5), k, v, numbers({0, 5, 0}),
                                        numbers({700, 21, 1}))};
    }));
  }
  all.push_back(
      {.name = "convolve_row", .f32 = kSums, .run = [](const Place& p) {
         const int64_t dilation = 2, rows = 2 * dilation + 1, margin = dilation;
         const Tensor window = Tensor::zeros({2, rows, 16 + 2 * margin, 6}, p.type, p.device);
         const Tensor packed = pack_row_weights(p.normal({7, 6, 3, 3}, 1));
         Inputs out;
         for (uint64_t n = 0; n < 7; ++n) {
           push_row(window, p.normal({2, 16, 6}, 10 + n), margin);
           out.push_back(convolve_row(window, packed, p.normal({7}, 2),
                                      {.outputs = 7, .dilation = dilation}));
         }
         return out;
       }});
}

}  // namespace

void add_estimator_steps(std::vector<Case>& all) {
  add_linear_steps(all);
  add_prior_steps(all);
  add_caches(all);
}

}  // namespace brine::selftest
