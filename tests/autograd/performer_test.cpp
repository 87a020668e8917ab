// The estimator's ops against naive f64 sums, and their gradients.
#include <algorithm>
#include <cmath>

#include "autograd/ops.h"
#include "tests/gradcheck.h"

using namespace brine;
using brine::test::check_op;
using brine::test::normal;
using brine::test::uniform;

namespace {

using Values = std::vector<double>;

// Keys that query t of a sequence of length L sees.
int64_t width(bool causal, int64_t L, int64_t t) { return t >= L ? 0 : (causal ? t + 1 : L); }

Tensor lengths_of(const std::vector<int64_t>& values) {
  return values.empty() ? Tensor() : Tensor::from(values, {int64_t(values.size())});
}

struct Sizes {
  int64_t B, H, T, m, d;
};

// Linear attention word by word, keys one at a time.
Values naive_attention(const Tensor& q, const Tensor& k, const Tensor& identity, const Tensor& v,
                       bool causal, const std::vector<int64_t>& lengths, double eps) {
  const int64_t B = q.dim(0), H = q.dim(1), T = q.dim(2), m = q.dim(3), d = v.dim(3);
  const int64_t i = identity.defined() ? identity.dim(-1) : 0, e = i + d;
  Values pq = q.to_vector(), pk = k.to_vector(), pv = v.to_vector(), pi;
  if (i) pi = identity.to_vector();
  Values y(size_t(B * H * T * e), 0.0);
  for (int64_t n = 0; n < B * H; ++n) {
    const int64_t b = n / H, L = lengths.empty() ? T : lengths[size_t(b)];
    for (int64_t t = 0; t < T; ++t) {
      double below = 0;
      double* out = &y[size_t((n * T + t) * e)];
      for (int64_t j = 0; j < m && t < L; ++j) below += eps * pq[size_t((n * T + t) * m + j)];
      for (int64_t s = 0; s < width(causal, L, t); ++s) {
        double weight = 0;
        for (int64_t j = 0; j < m; ++j) {
          weight += pq[size_t((n * T + t) * m + j)] * pk[size_t((n * T + s) * m + j)];
        }
        below += weight;
        const int64_t row = identity.defined() && identity.rank() == 3 ? b * T + s : s;
        for (int64_t c = 0; c < i; ++c) out[c] += weight * pi[size_t(row * i + c)];
        for (int64_t c = 0; c < d; ++c) out[i + c] += weight * pv[size_t((n * T + s) * d + c)];
      }
      for (int64_t c = 0; c < e && t < L; ++c) out[c] /= below;
    }
  }
  return y;
}

void check_attention(const Sizes& s, int64_t i, bool causal, const std::vector<int64_t>& lengths,
                     double grad_tolerance) {
  const Visibility visible{.causal = causal, .lengths = lengths_of(lengths)};
  const double eps = 1e-3;
  std::vector<Tensor> inputs = {uniform({s.B, s.H, s.T, s.m}, 1, 0.05, 1),
                                uniform({s.B, s.H, s.T, s.m}, 2, 0.05, 1),
                                normal({s.B, s.H, s.T, s.d}, 3)};
  if (i) inputs.push_back(normal({s.T + 2, i}, 4));
  auto identity = [=](const std::vector<Tensor>& x) { return i ? x[3] : Tensor(); };
  check_op({.name = join("linear_attention T=", s.T, " i=", i, causal ? " causal" : ""),
            .inputs = inputs,
            .f =
                [=](const auto& x) {
                  return linear_attention(x[0], x[1], identity(x), x[2], visible, eps);
                },
            .oracle =
                [=](const auto& x) {
                  return naive_attention(x[0], x[1], identity(x), x[2], causal, lengths, eps);
                },
            // One token's gradients come from eps alone: little is left of large numbers.
            .tolerance = s.T == 1 ? 1e-3 : 1e-5,
            .grad_tolerance = grad_tolerance});
}

// The prior word by word: a column's keys one at a time.
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

void check_prior(const Sizes& s, int64_t K, bool causal, const std::vector<int64_t>& lengths,
                 int64_t step) {
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

TEST_CASE("relu_features: values, padding and gradient") {
  const Tensor R = normal({7, 5}, 9);
  const Tensor lengths = lengths_of({6, 3});
  check_op(
      {.name = "relu_features",
       .inputs = {normal({2, 3, 6, 5}, 1)},
       .f = [=](const auto& x) { return relu_features(x[0], R.to(x[0].dtype()), 1e-3, lengths); },
       .oracle =
           [=](const auto& x) {
             Values in = x[0].to_vector(), r = R.to_vector(), y;
             for (int64_t row = 0; row < 36; ++row) {
               for (int64_t j = 0; j < 7; ++j) {
                 double sum = 0;
                 for (int64_t c = 0; c < 5; ++c)
                   sum += in[size_t(row * 5 + c)] * r[size_t(j * 5 + c)];
                 sum = std::max(0.0, sum / std::sqrt(std::sqrt(5.0))) + 1e-3;
                 y.push_back(row % 6 < (row < 18 ? 6 : 3) ? sum : 0.0);
               }
             }
             return y;
           }});
}

TEST_CASE("softmax_features: values and the gradient with the maxima held") {
  const Tensor R = normal({7, 4}, 9, Dtype::f64);
  const std::vector<int64_t> L = {5, 2};
  const Tensor x = normal({2, 2, 5, 4}, 1, Dtype::f64), lengths = lengths_of(L);
  const Values in = x.to_vector(), r = R.to_vector();
  auto projected = [&](const Values& from, int64_t row, int64_t j) {
    double sum = 0;
    for (int64_t c = 0; c < 4; ++c) sum += from[size_t(row * 4 + c)] * r[size_t(j * 4 + c)];
    return sum / std::sqrt(2.0);
  };
  for (FeatureSide side : {FeatureSide::queries, FeatureSide::keys}) {
    Values most(20, -1e9);  // of each row's group
    for (int64_t row = 0; row < 20; ++row) {
      for (int64_t other = 0; other < 20; ++other) {
        bool together = side == FeatureSide::keys ? other / 5 == row / 5 : other == row;
        if (!together || other % 5 >= L[size_t(other / 10)]) continue;
        for (int64_t j = 0; j < 7; ++j)
          most[size_t(row)] = std::max(most[size_t(row)], projected(in, other, j));
      }
    }
    auto oracle = [&](const Values& from) {
      Values y;
      for (int64_t row = 0; row < 20; ++row) {
        double square = 0;
        for (int64_t c = 0; c < 4; ++c)
          square += from[size_t(row * 4 + c)] * from[size_t(row * 4 + c)];
        for (int64_t j = 0; j < 7; ++j) {
          double phi = std::exp(projected(from, row, j) - square / 4 - most[size_t(row)]) + 1e-2;
          y.push_back(row % 5 < L[size_t(row / 10)] ? phi / std::sqrt(7.0) : 0.0);
        }
      }
      return y;
    };
    auto f = [&](const std::vector<Tensor>& v) {
      return softmax_features(v[0], R.to(v[0].dtype()), 1e-2, lengths, side);
    };
    check_op({.name = "softmax_features", .inputs = {x}, .f = f, .grad_tolerance = 0});
    Tensor y = f({x}), dy = brine::test::cotangent(y);
    CHECK(brine::test::close(y.to_vector(), oracle(in), 1e-13, 1e-12));
    const Values weight = dy.to_vector(), g = brine::test::run(f, {x}, dy).grads[0].to_vector();
    for (size_t i = 0; i < in.size(); ++i) {
      auto loss = [&](double step) {
        Values moved = in, out;
        moved[i] += step;
        out = oracle(moved);
        double sum = 0;
        for (size_t e = 0; e < out.size(); ++e) sum += out[e] * weight[e];
        return sum;
      };
      CHECK(g[i] == doctest::Approx((loss(1e-5) - loss(-1e-5)) / 2e-5).epsilon(1e-6));
    }
  }
}

TEST_CASE("linear_attention: causal, odd lengths, with and without an identity table") {
  for (int64_t T : {1, 3, 17, 33, 64, 65, 257}) {
    check_attention({1, 2, T, 5, 3}, 4, true, {}, T < 70 ? 1e-6 : 0);
  }
  check_attention({2, 2, 130, 3, 4}, 0, true, {130, 65}, 1e-6);
  check_attention({3, 1, 33, 4, 3}, 3, true, {33, 0, 1}, 1e-6);
}

TEST_CASE("linear_attention: bidirectional") {
  for (int64_t T : {1, 17, 65}) check_attention({1, 2, T, 5, 3}, 4, false, {}, 1e-6);
  check_attention({3, 2, 67, 4, 3}, 2, false, {67, 64, 0}, 1e-6);
}

TEST_CASE("linear_attention: an identity for each sequence") {
  const Visibility visible{.causal = false, .lengths = lengths_of({9, 4})};
  const Tensor identity = normal({2, 9, 3}, 8);
  check_op(
      {.name = "identity [B, T, i]",
       .inputs = {uniform({2, 2, 9, 4}, 1, 0.1, 1), uniform({2, 2, 9, 4}, 2, 0.1, 1),
                  normal({2, 2, 9, 3}, 3)},
       .f =
           [=](const auto& x) {
             return linear_attention(x[0], x[1], identity.to(x[0].dtype()), x[2], visible);
           },
       .oracle =
           [=](const auto& x) {
             return naive_attention(x[0], x[1], identity.to(Dtype::f64), x[2], false, {9, 4}, 1e-6);
           }});
}

TEST_CASE("linear_attention: later tokens change nothing earlier, bit for bit") {
  const int64_t T = 150, cut = 70;
  Tensor q = uniform({1, 2, T, 6}, 1, 0, 1), k = uniform({1, 2, T, 6}, 2, 0, 1);
  Tensor v = normal({1, 2, T, 5}, 3), id = normal({T, 4}, 4);
  Tensor y = linear_attention(q, k, id, v, {});
  for (Tensor* x : {&q, &k, &v}) {
    *x = x->clone();
    for (int64_t h = 0; h < 2; ++h) {
      float* row = x->data<float>() + (h * T + cut) * x->dim(3);
      std::fill(row, row + (T - cut) * x->dim(3), 2.5f);
    }
  }
  Tensor z = linear_attention(q, k, id, v, {});
  CHECK(brine::test::same_bits(y.slice(2, 0, cut), z.slice(2, 0, cut)));
  CHECK_FALSE(brine::test::same_bits(y.slice(2, cut, 1), z.slice(2, cut, 1)));
}

TEST_CASE("linear_attention: refusals") {
  Tensor phi = uniform({1, 1, 4, 3}, 1, 0, 1), v = normal({1, 1, 4, 2}, 2);
  CHECK_THROWS_WITH(linear_attention(phi, phi, normal({3, 2}, 3), v, {}),
                    "linear_attention: 4 tokens, but the table has 3 positions");
  CHECK_THROWS_AS(linear_attention(phi, phi, {}, normal({1, 1, 5, 2}, 2), {}), Error);
  CHECK_THROWS_AS(linear_attention(phi, phi, {}, v.to(Dtype::f64), {}), Error);
}

TEST_CASE("linear_pair is linear of the two side by side") {
  auto f = [](const auto& x) { return linear_pair(x[0], x[1], x[2], x[3]); };
  const std::vector<Tensor> inputs = {normal({2, 5, 4}, 1), normal({2, 5, 3}, 2), normal({6, 7}, 3),
                                      normal({6}, 4)};
  check_op({.name = "linear_pair", .inputs = inputs, .f = f, .oracle = [](const auto& x) {
              Values y, a = x[0].to_vector(), b = x[1].to_vector(), w = x[2].to_vector();
              for (size_t r = 0; r < 10; ++r) {
                for (size_t o = 0; o < 6; ++o) {
                  double sum = x[3].to_vector()[o];
                  for (size_t c = 0; c < 4; ++c) sum += a[r * 4 + c] * w[o * 7 + c];
                  for (size_t c = 0; c < 3; ++c) sum += b[r * 3 + c] * w[o * 7 + 4 + c];
                  y.push_back(sum);
                }
              }
              return y;
            }});
}

TEST_CASE("performer_prior: columns with and without keys, lengths, skipped rows") {
  for (int64_t T : {1, 3, 17, 33, 65}) check_prior({1, 2, T, 5, 0}, 8, true, {}, 1);
  check_prior({2, 2, 37, 9, 0}, 5, true, {37, 20}, 1);
  check_prior({1, 2, 19, 3, 0}, 4, true, {}, 4);
  check_prior({3, 1, 21, 4, 0}, 6, false, {21, 3, 0}, 1);
}

TEST_CASE("performer_prior: a thin column beside heavy ones keeps its digits in f32") {
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
  CHECK(brine::test::close(y, expected, 1e-6, 1e-6));
}

TEST_CASE("column_softmax: over the columns that own a key") {
  const std::vector<int64_t> lengths = {9, 5};
  for (bool causal : {true, false}) {
    const Visibility visible{.causal = causal, .lengths = lengths_of(lengths)};
    check_op({.name = "column_softmax",
              .inputs = {normal({2, 2, 9, 7}, 1, Dtype::f32, 50, 2)},
              .f = [=](const auto& x) { return column_softmax(x[0], visible); },
              .oracle =
                  [=](const auto& x) {
                    Values s = x[0].to_vector(), y(s.size(), 0.0);
                    for (int64_t r = 0; r < 36; ++r) {
                      const int64_t w = width(causal, lengths[size_t(r / 18)], r % 9);
                      double sum = 0;
                      for (int pass = 0; pass < 2; ++pass) {
                        for (int64_t c = 0; c < 7; ++c) {
                          if ((2 * c * w + 7) / 14 == (2 * c * w + 2 * w + 7) / 14) continue;
                          const double p = std::exp(s[size_t(r * 7 + c)] - 50);
                          if (pass)
                            y[size_t(r * 7 + c)] = p / sum;
                          else
                            sum += p;
                        }
                      }
                    }
                    return y;
                  },
              .tolerance = 1e-4});
  }
}

TEST_CASE("image_from_heads and heads_from_image: where every number goes") {
  const Tensor lengths = lengths_of({5, 2});
  check_op({.name = "image_from_heads",
            .inputs = {normal({2, 3, 5, 8}, 1)},  // c = 2, W = 4
            .f =
                [=](const auto& x) {
                  return image_from_heads(x[0], 4, {3, 2}, lengths);
                },
            .oracle =
                [](const auto& x) {
                  Values in = x[0].to_vector(), y;
                  for (int64_t b = 0; b < 2; ++b) {
                    for (int64_t t = -3; t < 7; ++t) {
                      for (int64_t w = 0; w < 4; ++w) {
                        for (int64_t channel = 0; channel < 6; ++channel) {
                          const int64_t h = channel / 2, i = channel % 2;
                          const bool zero = t < 0 || t >= (b ? 2 : 5);
                          y.push_back(zero ? 0 : in[size_t(((b * 3 + h) * 5 + t) * 8 + i * 4 + w)]);
                        }
                      }
                    }
                  }
                  return y;
                }});
  for (int64_t stride : {1, 2, 3}) {
    for (int64_t K : {3, 6, 7}) {
      const int64_t R = (5 + stride - 1) / stride;
      check_op({.name = join("heads_from_image K=", K, " stride=", stride),
                .inputs = {normal({2, R, 3, 4}, 2)},
                .f = [=](const auto& x) { return heads_from_image(x[0], 5, K, stride); },
                .oracle =
                    [=](const auto& x) {
                      Values in = x[0].to_vector(), y;
                      for (int64_t n = 0; n < 8; ++n) {
                        for (int64_t t = 0; t < 5; ++t) {
                          for (int64_t c = 0; c < K; ++c) {
                            y.push_back(
                                in[size_t(((n / 4 * R + t / stride) * 3 + c * 3 / K) * 4 + n % 4)]);
                          }
                        }
                      }
                      return y;
                    }});
    }
  }
}

TEST_CASE("every_nth_row and repeat_rows undo each other on constant stretches") {
  for (int64_t step : {1, 2, 4, 9}) {
    check_op({.name = join("every_nth_row ", step),
              .inputs = {normal({2, 2, 7, 3}, 1)},
              .f = [=](const auto& x) { return every_nth_row(x[0], step); },
              .oracle =
                  [=](const auto& x) {
                    Values in = x[0].to_vector(), y;
                    for (int64_t r = 0; r < 28; ++r) {
                      if (r % 7 % step) continue;
                      for (int64_t c = 0; c < 3; ++c) y.push_back(in[size_t(r * 3 + c)]);
                    }
                    return y;
                  }});
    const int64_t R = (7 + step - 1) / step;
    check_op({.name = join("repeat_rows ", step),
              .inputs = {normal({2, 2, R, 3}, 1)},
              .f = [=](const auto& x) { return repeat_rows(x[0], step, 7); },
              .oracle =
                  [=](const auto& x) {
                    Values in = x[0].to_vector(), y;
                    for (int64_t r = 0; r < 28; ++r) {
                      for (int64_t c = 0; c < 3; ++c) {
                        y.push_back(in[size_t((r / 7 * R + r % 7 / step) * 3 + c)]);
                      }
                    }
                    return y;
                  }});
  }
}
