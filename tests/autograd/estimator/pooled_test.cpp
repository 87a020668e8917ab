// The scores of mean keys against naive f64 sums, their gradients, and their step against the whole
// pass.
#include <cmath>

#include "autograd/ops.h"
#include "tests/estimator_oracle.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

// The scores by their definition: a column's keys one at a time.
Values naive_pooled(const Tensor& queries, const Tensor& keys, bool causal,
                    const std::vector<int64_t>& lengths, int64_t K, ColumnGrid grid) {
  const int64_t H = queries.dim(1), T = queries.dim(2), d = queries.dim(3);
  const int64_t group = H / keys.dim(1), R = (T + grid.step - 1) / grid.step;
  const Array q(queries), k(keys);
  return of_columns({queries.dim(0), H, R, K}, T, causal, lengths, grid,
                    [&](const Coordinates& at, int64_t t, int64_t, int64_t first, int64_t end) {
                      double sum = 0;
                      for (int64_t s = first; s < end; ++s) {
                        for (int64_t i = 0; i < d; ++i)
                          sum += q(at[0], at[1], t, i) * k(at[0], at[1] / group, s, i);
                      }
                      return sum / double(end - first) / std::sqrt(double(d));
                    });
}

void check_pooled(const EstimatorSizes& s, int64_t G, int64_t K, bool causal,
                  const std::vector<int64_t>& lengths, ColumnGrid grid) {
  const Visibility visible{.causal = causal, .lengths = lengths_of(lengths)};
  const int64_t R = (s.T + grid.step - 1) / grid.step;
  check_op(
      {.name = join("pooled_prior T=", s.T, " K=", K, " step=", grid.step, " units=", grid.units),
       .inputs = {normal({s.B, s.H, R, K}, 3), normal({s.H}, 4), normal({s.B, s.H, s.T, s.d}, 1),
                  normal({s.B, G, s.T, s.d}, 2)},
       .f = [=](In x) { return pooled_prior(x[0], x[1], x[2], x[3], visible, grid); },
       .oracle =
           [=](In x) {
             Values y = naive_pooled(x[2], x[3], causal, lengths, K, grid);
             const Values scores = x[0].to_vector(), gain = x[1].to_vector();
             for (size_t i = 0; i < y.size(); ++i) {
               y[i] = scores[i] + gain[i / size_t(R * K) % size_t(s.H)] * y[i];
             }
             return y;
           }});
}

}  // namespace

TEST_CASE("pooled_prior: scores plus a gain for each head, and the gradients of all") {
  for (int64_t T : {1, 3, 17, 65}) check_pooled({1, 2, T, 0, 5}, 2, 8, true, {}, 1);
  check_pooled({2, 4, 37, 0, 9}, 2, 5, true, {37, 20}, 1);
  check_pooled({1, 3, 19, 0, 3}, 1, 4, true, {}, 4);
  check_pooled({3, 2, 21, 0, 4}, 1, 6, false, {21, 3, 0}, 1);
  check_pooled({2, 2, 7, 0, 5}, 2, 3, false, {0, 6}, 1);
  check_pooled({2, 4, 130, 0, 20}, 2, 16, false, {130, 71}, 1);
  check_pooled({1, 1, 0, 0, 4}, 1, 3, true, {}, 1);
}

TEST_CASE("pooled_prior: long columns, and bands of many rows") {
  // K = 20: rows whose columns have up to 2 keys use sums over windows, later ones prefix sums.
  check_pooled({1, 4, 131, 0, 5}, 2, 20, true, {}, 1);
  // From 256 rows on they are divided; the second part of a short sequence sees no key.
  check_pooled({2, 4, 270, 0, 3}, 2, 24, true, {270, 100}, 1);
  check_pooled({1, 2, 521, 0, 3}, 1, 24, true, {400}, 2);
  check_pooled({1, 2, 60, 0, 4}, 1, 3, true, {}, 1);
  check_pooled({1, 1, 50, 0, 17}, 1, 2, true, {}, 7);
  check_pooled({2, 2, 300, 0, 3}, 1, 290, true, {300, 299}, 1);
  check_pooled({1, 1, 600, 0, 2}, 1, 5, false, {}, 1);
}

TEST_CASE("pooled_prior: columns of several units") {
  check_pooled({1, 4, 131, 0, 5}, 2, 9, true, {}, {1, 2});
  check_pooled({2, 2, 420, 0, 3}, 1, 40, true, {420, 333}, {1, 2});
  check_pooled({2, 2, 150, 0, 4}, 2, 8, false, {150, 67}, {1, 3});
}

TEST_CASE("pooled_scores_step gives the rows of the causal pass, each sequence at its own pace") {
  const int64_t B = 2, H = 4, G = 2, T = 70, d = 5, K = 8;
  for (auto [type, units] : {std::pair{Dtype::f32, 0}, {Dtype::f64, 0}, {Dtype::f64, 2}}) {
    const Tensor q = normal({B, H, T, d}, 1, type), k = normal({B, G, T, d}, 2, type);
    const Tensor full = pooled_prior(Tensor::zeros({B, H, T, K}, type), Tensor::full({H}, 1, type),
                                     q, k, {}, {1, units});
    Tensor borders = Tensor::zeros({B, G, K + 1, border_columns(d)}, Dtype::f64);
    Tensor at = Tensor::zeros({B}, Dtype::i64);
    for (std::vector<int64_t> width :
         {std::vector<int64_t>{1, 30}, {2, 31}, {3, 31}, {40, 47}, {41, 70}, {70, 70}}) {
      const std::vector<int64_t> row = {width[0] - 1, width[1] - 1};
      const Tensor y =
          pooled_scores_step(borders, at, rows_at(q, row), k, Tensor::from(width, {B}), units);
      CHECK(close_to_scale(y, rows_at(full, row), type == Dtype::f64 ? 1e-12 : 1e-5));
      CHECK(at.to_vector() == std::vector<double>(width.begin(), width.end()));
    }
  }
}

TEST_CASE("pooled_scores_step of keys in 16 bits is that of their values in f32") {
  const int64_t B = 2, T = 70, d = 5, K = 8;
  const Tensor q = normal({B, 4, 1, d}, 1), width = Tensor::from(std::vector<int64_t>{70, 33}, {B});
  for (Dtype type : {Dtype::bf16, Dtype::f16}) {
    const Tensor k = normal({B, 2, T, d}, 2).to(type);
    auto step = [&](const Tensor& keys) {
      Tensor borders = Tensor::zeros({B, 2, K + 1, border_columns(d)}, Dtype::f64);
      return pooled_scores_step(borders, Tensor::zeros({B}, Dtype::i64), q, keys, width, 2);
    };
    CHECK(same_bits(step(k), step(k.to(Dtype::f32))));
  }
}

TEST_CASE("pooled_prior: what cannot be is refused") {
  const Tensor q = normal({1, 4, 6, 2}, 1), scores = normal({1, 4, 6, 5}, 3), gain = normal({4}, 4);
  CHECK_REFUSES(pooled_prior(scores, gain, q, normal({1, 3, 6, 2}, 2), {}), "pooled_prior",
                "[1, 4, 6, 2]", "[1, 3, 6, 2]");
  CHECK_REFUSES(pooled_prior(scores, gain, q, q, {}, 0), "pooled_prior", "step", "0");
  CHECK_REFUSES(pooled_prior(scores, gain, q, q, {}, {1, -1}), "pooled_prior", "units", "-1");
}

}  // namespace brine::test
