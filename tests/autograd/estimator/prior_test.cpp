// The Performer's prior against naive f64 sums, its gradients, and its step against the whole pass.
#include <cmath>

#include "autograd/ops.h"
#include "tests/estimator_oracle.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

// The prior by its definition: a column's keys one at a time.
Values naive_prior(const std::vector<Tensor>& x, bool causal, const std::vector<int64_t>& lengths,
                   int64_t step) {
  const int64_t H = x[2].dim(1), T = x[2].dim(2), m = x[2].dim(3), R = x[0].dim(2), K = x[0].dim(3);
  Values y = x[0].to_vector(), g = x[1].to_vector(), q = x[2].to_vector(), k = x[3].to_vector();
  for (int64_t n = 0; n < x[0].dim(0) * H; ++n) {
    const int64_t L = lengths.empty() ? T : lengths[size_t(n / H)];
    for (int64_t r = 0; r < R; ++r) {
      const int64_t t = r * step, w = width(causal, L, t);
      auto mass = [&](int64_t first, int64_t end) {
        double sum = 0;
        for (int64_t s = first; s < end; ++s) {
          for (int64_t j = 0; j < m; ++j) {
            sum += q[size_t((n * T + t) * m + j)] * k[size_t((n * T + s) * m + j)];
          }
        }
        return sum;
      };
      for (int64_t c = 0; c < K; ++c) {
        const int64_t first = (2 * c * w + K) / (2 * K), end = (2 * (c + 1) * w + K) / (2 * K);
        if (end == first) continue;
        y[size_t((n * R + r) * K + c)] +=
            g[size_t(n % H)] *
            std::log(double(w) / double(end - first) * mass(first, end) / mass(0, w));
      }
    }
  }
  return y;
}

void check_prior(const EstimatorSizes& s, int64_t K, bool causal,
                 const std::vector<int64_t>& lengths, int64_t step) {
  const Visibility visible{.causal = causal, .lengths = lengths_of(lengths)};
  check_op(
      {.name = join("performer_prior T=", s.T, " K=", K, " step=", step),
       .inputs = {normal({s.B, s.H, (s.T + step - 1) / step, K}, 1), uniform({s.H}, 2, 0.5, 1.5),
                  uniform({s.B, s.H, s.T, s.m}, 3, 0.1, 1),
                  uniform({s.B, s.H, s.T, s.m}, 4, 0.1, 1)},
       .f = [=](const auto& x) { return performer_prior(x[0], x[1], x[2], x[3], visible, step); },
       .oracle = [=](const auto& x) { return naive_prior(x, causal, lengths, step); },
       .tolerance = 3e-5});
}

}  // namespace

TEST_CASE("performer_prior: columns with and without keys, lengths, skipped rows") {
  for (int64_t T : {1, 3, 17, 33, 65}) check_prior({1, 2, T, 5, 0}, 8, true, {}, 1);
  check_prior({2, 2, 37, 9, 0}, 5, true, {37, 20}, 1);
  check_prior({1, 2, 19, 3, 0}, 4, true, {}, 4);
  check_prior({3, 1, 21, 4, 0}, 6, false, {21, 3, 0}, 1);
}

TEST_CASE("performer_prior: a column of small mass among large ones keeps its digits in f32") {
  const int64_t T = 2048, K = 16;
  Tensor q = uniform({1, 1, T, 3}, 1, 0.5, 1), k = uniform({1, 1, T, 3}, 2, 0.5, 1).clone();
  for (int64_t s = 1920; s < 2048; ++s) {
    for (int64_t j = 0; j < 3; ++j) k.data<float>()[s * 3 + j] *= 1e-7f;
  }
  Tensor gain = Tensor::full({1}, 1.0), scores = Tensor::zeros({1, 1, T, K});
  Values y = performer_prior(scores, gain, q, k, {}).to_vector();
  Values expected =
      naive_prior({scores.to(Dtype::f64), gain.to(Dtype::f64), q.to(Dtype::f64), k.to(Dtype::f64)},
                  true, {}, 1);
  CHECK(expected.back() < -15);
  CHECK(close(y, expected, 1e-6, 1e-6));
}

TEST_CASE("performer_prior_step gives the rows of the causal pass, each sequence at its own pace") {
  const int64_t B = 2, H = 2, T = 70, m = 5, K = 8;
  for (Dtype type : {Dtype::f32, Dtype::f64}) {
    const Tensor q = uniform({B, H, T, m}, 1, 0.1, 1, type), gain = uniform({H}, 4, 0.5, 1.5, type);
    const Tensor k = uniform({B, H, T, m}, 2, 0.1, 1, type), scores = normal({B, H, T, K}, 3, type);
    const Tensor full = performer_prior(scores, gain, q, k, {});
    Tensor borders = Tensor::zeros({B, H, K + 1, border_columns(m)}, Dtype::f64);
    Tensor at = Tensor::zeros({B}, Dtype::i64);
    for (std::vector<int64_t> width :
         {std::vector<int64_t>{1, 30}, {2, 31}, {3, 31}, {40, 47}, {41, 70}, {70, 70}}) {
      const std::vector<int64_t> row = {width[0] - 1, width[1] - 1};
      const Tensor y = performer_prior_step(borders, at, rows_at(scores, row), gain,
                                            rows_at(q, row), k, Tensor::from(width, {B}));
      CHECK(close_to_scale(y, rows_at(full, row), type == Dtype::f64 ? 1e-12 : 1e-5));
      CHECK(at.to_vector() == std::vector<double>(width.begin(), width.end()));
    }
    const Tensor back = Tensor::from(std::vector<int64_t>{70, 69}, {B});
    check_refuses(
        [&] {
          performer_prior_step(borders, at, rows_at(scores, {0, 0}), gain, rows_at(q, {0, 0}), k,
                               back);
        },
        {"performer_prior_step", "sequence 1", "70", "69"});
  }
}

}  // namespace brine::test
