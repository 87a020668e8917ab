// SEA's estimator, forward and backward, in sizes where its kernels cut sequences into chunks.
#include "apps/selftest/passed.h"

namespace brine::selftest {
namespace {

// Of products in f32, of the largest number: a sum of a few hundred terms is off by about 1e-6, by
// TF32's three products by 1.3e-6 (docs/cuda.md); without one of the two, by 1e-4.
constexpr double kProducts = 1e-5;
// The gradient of a share of very many keys: its parts cancel, 7e-5 is seen for three columns of
// 4,200 keys.
constexpr double kCancelled = 3e-4;

struct Chunks {
  int64_t B, H, G, T, m, i, d;
  std::vector<int64_t> lengths;
};

// Positive features; values that do not cancel, or the gradient of a denominator is noise.
void add_linear_attention(std::vector<Case>& all) {
  const std::vector<Chunks> sizes = {
      {1, 2, 1, 300, 70, 0, 61, {}},       // chunks of 128 rows
      {1, 1, 1, 260, 155, 68, 64, {250}},  // of 192, whose triangle has three tiles
      {1, 1, 1, 2200, 3, 2, 3, {2190}},    // 35 chunks: sums in two levels
  };
  for (const Chunks& s : sizes) {
    for (bool causal : {true, false}) {
      if (!causal && s.T != 300) continue;  // the emulator takes seconds
      const Visibility visible{.causal = causal,
                               .lengths = s.lengths.empty() ? Tensor() : numbers(s.lengths)};
      all.push_back({.name = join("linear_attention, ", s.T, " tokens, ", s.m, " features",
                                  causal ? ", causal" : ""),
                     .f32 = kProducts,
                     .run = [=](const Place& p) {
                       Inputs inputs = {p.uniform({s.B, s.H, s.T, s.m}, 1, 0, 1),
                                        p.uniform({s.B, s.G, s.T, s.m}, 2, 0, 1),
                                        p.normal({s.B, s.G, s.T, s.d}, 3)};
                       if (s.i) inputs.push_back(p.normal({s.T + 3, s.i}, 4));
                       return passed(p, inputs, [&](const Inputs& x) {
                         const Tensor identity = s.i ? x[3] : Tensor();
                         return linear_attention(x[0], x[1], identity, x[2], visible, 1e-3);
                       });
                     }});
    }
  }
}

void add_features(std::vector<Case>& all) {
  const Tensor lengths = numbers({75, 0, 41});
  for (bool softmax : {false, true}) {
    for (FeatureSide side : {FeatureSide::queries, FeatureSide::keys}) {
      if (!softmax && side == FeatureSide::keys) continue;
      const bool keys = side == FeatureSide::keys;
      all.push_back(
          {.name = join(softmax ? "softmax_features" : "relu_features", keys ? " of keys" : ""),
           .f32 = kProducts,
           .run = [=](const Place& p) {
             const Tensor projection = p.normal({20, 16}, 2);
             return passed(p, {p.normal({3, 2, 75, 16}, 1)}, [&](const Inputs& x) {
               return softmax ? softmax_features(x[0], projection, 1e-3, lengths, side)
                              : relu_features(x[0], projection, 1e-3, lengths);
             });
           }});
    }
  }
  all.push_back({.name = "exp_features", .f32 = kProducts, .run = [=](const Place& p) {
                   return passed(p,
                                 {p.normal({3, 2, 75, 16}, 1), p.normal({3, 2, 75, 16}, 2),
                                  p.normal({2, 20, 16}, 3, 0.3), p.normal({2, 20}, 4),
                                  p.normal({2, 20, 16}, 5, 0.3)},
                                 [&](const Inputs& x) {
                                   return exp_features(
                                       x[0], x[1], {.weight = x[2], .bias = x[3], .content = x[4]},
                                       lengths);
                                 });
                 }});
}

struct Prior {
  int64_t B, H, G, T, m, K;
  ColumnGrid grid;
  std::vector<int64_t> lengths;
};

// Features of later keys are larger: shares that are nearly equal have logarithms of noise.
Tensor growing(const Shape& shape, const Place& p) {
  const size_t row = size_t(shape[3]), rows = size_t(shape[2]);
  return made(shape, p, [=](size_t i) {
    return (0.2 + double(i / row % rows) / double(rows)) * (0.3 + double(i * 7 % 11) / 11);
  });
}

void add_priors(std::vector<Case>& all) {
  const std::vector<Prior> sizes = {
      {2, 4, 2, 300, 20, 16, {}, {300, 171}},
      {1, 2, 1, 300, 36, 9, {2, 3}, {}},  // every other row, by units of keys
      {1, 1, 1, 4200, 3, 3, {70}, {}},    // sums in two levels, long columns
  };
  for (const Prior& s : sizes) {
    for (bool causal : {true, false}) {
      const Visibility visible{.causal = causal,
                               .lengths = s.lengths.empty() ? Tensor() : numbers(s.lengths)};
      const Shape scores{s.B, s.H, (s.T + s.grid.step - 1) / s.grid.step, s.K};
      const std::string size =
          join(", ", s.T, " tokens, ", s.K, " columns", causal ? ", causal" : "");
      all.push_back({.name = "performer_prior" + size,
                     .f32 = s.T > 4000 ? kCancelled : kProducts,
                     .run = [=](const Place& p) {
                       return passed(p,
                                     {p.normal(scores, 1), p.normal({s.H}, 2),
                                      p.uniform({s.B, s.H, s.T, s.m}, 3, 0.1, 1),
                                      growing({s.B, s.G, s.T, s.m}, p)},
                                     [&](const Inputs& x) {
                                       return performer_prior(x[0], x[1], x[2], x[3], visible,
                                                              s.grid, 1e-3);
                                     });
                     }});
      all.push_back({.name = "pooled_scores" + size, .f32 = kProducts, .run = [=](const Place& p) {
                       return passed(
                           p,
                           {p.normal(scores, 1), p.normal({s.H}, 2),
                            p.normal({s.B, s.H, s.T, s.m}, 3), p.normal({s.B, s.G, s.T, s.m}, 4)},
                           [&](const Inputs& x) {
                             return pooled_prior(x[0], x[1], x[2], x[3], visible, s.grid);
                           });
                     }});
    }
  }
  for (bool causal : {true, false}) {
    all.push_back(
        {.name = join("table_estimate", causal ? ", causal" : ""),
         .f32 = kProducts,
         .run = [=](const Place& p) {
           const PriorInputs prior{p.normal({4}, 1), p.uniform({3, 4, 150, 20}, 2, 0.1, 1),
                                   p.uniform({3, 2, 150, 20}, 3, 0.1, 1)};
           const PriorInputs means{p.normal({4}, 4), p.normal({3, 4, 150, 16}, 5),
                                   p.normal({3, 2, 150, 16}, 6)};
           return Inputs{table_estimate(p.normal({4, 32}, 7), prior, means, padded(causal))};
         }});
  }
}

void add_images(std::vector<Case>& all) {
  all.push_back(simple("heads as an image", {{2, 3, 40, 24}}, [](const Inputs& x) {
    const Tensor image = image_from_heads(x[0], 8, {.before = 2, .after = 1}, numbers({40, 13}));
    return image;
  }));
  all.push_back(simple("an image as heads", {{2, 20, 8, 6}},
                       [](const Inputs& x) { return heads_from_image(x[0], 40, 32, 2); }));
  all.push_back(simple("column_softmax", {{3, 2, 150, 32}},
                       [](const Inputs& x) { return column_softmax(x[0], padded(true)); }));
  all.push_back({.name = "resampled_identity", .run = [](const Place& p) {
                   const Tensor lengths = numbers({40, 13});
                   return Inputs{resampled_identity({2, 40, 16}, true, lengths, p.type, p.device),
                                 resampled_identity({2, 40, 16}, false, lengths, p.type, p.device)};
                 }});
  all.push_back(
      simple("mix_outputs", {{3, 4, 150, 20}, {3, 2, 150, 20}, {3, 4, 150, 2}},
             [](const Inputs& x) { return mix_outputs(x[0], x[1], x[2], padded(true)); }));
  all.push_back({.name = "estimate_average", .f32 = kProducts, .run = [](const Place& p) {
                   return passed(
                       p, {p.uniform({3, 4, 150, 32}, 1, 0.01, 1), p.normal({3, 2, 150, 20}, 2)},
                       [](const Inputs& x) { return estimate_average(x[0], x[1], padded(false)); });
                 }});
}

}  // namespace

void add_estimator(std::vector<Case>& all) {
  add_features(all);
  add_linear_attention(all);
  add_priors(all);
  add_images(all);
}

}  // namespace brine::selftest
