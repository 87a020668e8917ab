// Heads as images, and the softmax over columns, against their definitions.
#include <cmath>

#include "autograd/ops.h"
#include "tests/autograd/naive.h"
#include "tests/estimator_oracle.h"
#include "tests/refusals.h"

namespace brine::test {

namespace {

// Of the scores [B, H, T, K], the softmax over the columns of a row that own a key, or its
// logarithm; 0 at the others. `mean`: about which the scores are.
Values owned_softmax(const Tensor& scores, bool causal, const std::vector<int64_t>& lengths,
                     double mean, bool logarithm) {
  const Array x(scores);
  const int64_t T = x.shape[2], K = x.shape[3];
  return tabulate(x.shape, [&](Coordinates at) {
    const int64_t w = width(causal, lengths.empty() ? T : lengths[size_t(at[0])], at[2]);
    auto owns = [&](int64_t c) {
      const auto [first, end] = keys_of_column(c, w, K, 0);
      return first < end;
    };
    if (!owns(at[3])) return 0.0;
    const double own = x(at) - mean;
    double sum = 0;
    for (int64_t& c = at[3] = 0; c < K; ++c) sum += owns(c) ? std::exp(x(at) - mean) : 0;
    return logarithm ? own - std::log(sum) : std::exp(own) / sum;
  });
}

}  // namespace

TEST_CASE("image_from_heads: where every number goes") {
  struct Size {
    int64_t B, H, T, c, W, halo, after;
    std::vector<int64_t> lengths = {};
  };
  for (const Size& s : {Size{2, 3, 5, 2, 4, 3, 2, {5, 2}}, Size{1, 1, 1, 1, 1, 0, 0},
                        Size{2, 12, 3, 3, 33, 1, 0, {0, 2}}, Size{1, 40, 2, 1, 70, 0, 2},
                        Size{3, 1, 90, 4, 9, 1, 1, {90, 0, 7}}, Size{1, 12, 4, 4, 20, 1, 0},
                        Size{1, 5, 40, 1, 60, 0, 0}, Size{1, 2, 0, 2, 3, 1, 1}}) {
    const Tensor lengths = lengths_of(s.lengths);
    check_op({.name = join("image_from_heads ", s.H, " x ", s.T, " x ", s.c * s.W),
              .inputs = {normal({s.B, s.H, s.T, s.c * s.W}, 1)},
              .f =
                  [=](In x) {
                    return image_from_heads(x[0], s.W, {s.halo, s.after}, lengths);
                  },
              .oracle =
                  [=](In x) {
                    const Array in(x[0]);
                    const Coordinates shape{s.B, s.halo + s.T + s.after, s.W, s.H * s.c};
                    return tabulate(shape, [&](const Coordinates& at) {
                      const int64_t t = at[1] - s.halo;
                      const int64_t L = s.lengths.empty() ? s.T : s.lengths[size_t(at[0])];
                      if (t < 0 || t >= L) return 0.0;
                      return in(at[0], at[3] / s.c, t, at[3] % s.c * s.W + at[2]);
                    });
                  }});
  }
}

TEST_CASE("column_softmax: over the columns that own a key") {
  struct Size {
    int64_t B, H, T, K;
    std::vector<int64_t> lengths = {};
  };
  for (const Size& s : {Size{2, 2, 9, 7, {9, 5}}, Size{1, 1, 1, 1}, Size{2, 3, 9, 5, {9, 0}},
                        Size{2, 1, 70, 64, {70, 3}}, Size{1, 2, 20, 100}, Size{1, 1, 0, 4}}) {
    for (bool causal : {true, false}) {
      const Visibility visible{.causal = causal, .lengths = lengths_of(s.lengths)};
      check_op({.name = join("column_softmax ", s.T, " x ", s.K),
                .inputs = {normal({s.B, s.H, s.T, s.K}, 1, Dtype::f32, 50, 2)},
                .f = [=](In x) { return column_softmax(x[0], visible); },
                .oracle = [=](In x) { return owned_softmax(x[0], causal, s.lengths, 50, false); },
                .tolerance = 1e-4});
    }
  }
}

TEST_CASE("column_log_softmax: the logarithm at the columns that own a key, 0 at the others") {
  const std::vector<int64_t> lengths = {9, 5};
  for (bool causal : {true, false}) {
    const Visibility visible{.causal = causal, .lengths = lengths_of(lengths)};
    check_op({.name = "column_log_softmax",
              .inputs = {normal({2, 2, 9, 7}, 1, Dtype::f32, -300, 2)},
              .f = [=](In x) { return column_log_softmax(x[0], visible); },
              .oracle = [=](In x) { return owned_softmax(x[0], causal, lengths, -300, true); }});
  }
  // Far below the largest score: a logarithm, where the softmax is 0.
  const Tensor far = Tensor::from(std::vector<double>{-500, 0, -1000}, {1, 1, 1, 3}).to(Dtype::f32);
  const Tensor three = Tensor::from(std::vector<int64_t>{3}, {1});
  const Tensor row = concat({far, far, far}, 2);
  CHECK(column_log_softmax(row, {.causal = false, .lengths = three}).to_vector() ==
        row.to_vector());
}

TEST_CASE("column_softmax_step has the bits of the causal pass") {
  const Tensor scores = normal({2, 3, 40, 7}, 1, Dtype::f32, 0, 2);
  const Tensor full = column_softmax(scores, {});
  for (std::vector<int64_t> row : {std::vector<int64_t>{0, 39}, {3, 1}, {20, 5}}) {
    const Tensor width = Tensor::from(std::vector<int64_t>{row[0] + 1, row[1] + 1}, {2});
    CHECK(same_bits(column_softmax_step(rows_at(scores, row), width), rows_at(full, row)));
  }
  CHECK_THROWS_AS(column_softmax_step(scores, Tensor::zeros({2}, Dtype::i64)), Error);
}

TEST_CASE("rows_from_table: a table is every row of every sequence, its gradient is their sum") {
  check_op({.name = "rows_from_table",
            .inputs = {normal({3, 5}, 1)},
            .f = [](In x) { return rows_from_table(x[0], 2, 7); },
            .oracle =
                [](In x) {
                  const Values table = x[0].to_vector();
                  Values y;
                  for (int64_t i = 0; i < 2 * 3 * 7 * 5; ++i) {
                    y.push_back(table[size_t(i / 35 % 3 * 5 + i % 5)]);
                  }
                  return y;
                }});
  CHECK_REFUSES(rows_from_table(normal({3}, 1), 2, 7), "rows_from_table", "[H, K]", "[3]");
}

TEST_CASE("resampled_identity: its rows, mixed of neighbouring rows of the identity") {
  for (Dtype dtype : {Dtype::f32, Dtype::f64}) {
    // Three rows of a 3 x 3 identity at every half.
    const Tensor y = resampled_identity({2, 5, 3}, false, lengths_of({5, 2}), dtype, Device{});
    CHECK(y.to_vector() == Values{1, 0, 0, .5, .5, 0, 0, 1, 0, 0, .5, .5, 0, 0, 1,  //
                                  1, 0, 0, 0,  0,  1, 0, 0, 0, 0, 0,  0,  0, 0, 0});
    const Tensor nearest = resampled_identity({1, 4, 2}, true, {}, dtype, Device{});
    CHECK(nearest.to_vector() == Values{1, 0, 1, 0, 0, 1, 0, 1});
    CHECK(resampled_identity({1, 1, 3}, false, {}, dtype, Device{}).to_vector() == Values{1, 0, 0});
  }
  CHECK_REFUSES(resampled_identity({4, 2}, false, {}, Dtype::f32, Device{}), "resampled_identity",
                "[B, T, d]", "[4, 2]");
}

}  // namespace brine::test
