// The table of dense ops, which tests/autograd proves against oracles and by differences.
#pragma once

#include <algorithm>
#include <cmath>

#include "autograd/ops.h"
#include "tests/autograd/naive.h"
#include "tests/gradcheck.h"

namespace brine::test::table {

using X = const Array&;
using At = const Coordinates&;
using Oracle = std::function<Values(const std::vector<Tensor>&)>;

// ---- oracles: the values of an op from its definition, one element at a time
// y(c) = f(x, c) for the coordinates c of y's shape, where x is the only input.
inline Oracle each_element(const Coordinates& shape, double (*f)(X x, At c)) {
  return [=](In in) {
    const Array x(in[0]);
    return tabulate(shape, [&](const Coordinates& c) { return f(x, c); });
  };
}

inline Oracle each_number(double (*f)(double)) {
  return [=](In in) {
    Values y;
    for (double x : in[0].to_vector()) y.push_back(f(x));
    return y;
  };
}

inline Oracle each_pair(double (*f)(double, double)) {
  return [=](In in) {
    const Values a = in[0].to_vector(), b = in[1].to_vector();
    Values y;
    for (size_t i = 0; i < a.size(); ++i) y.push_back(f(a[i], b[i]));
    return y;
  };
}

inline double product_sum(const Values& a, const Values& b) {
  long double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (long double)(a[i]) * b[i];
  return double(sum);
}

// log of the sum of exp(row) for each row of V numbers.
inline Values log_sums(const Values& x, size_t V) {
  Values sums;
  for (size_t r = 0; r < x.size(); r += V) {
    const double top = *std::max_element(x.begin() + long(r), x.begin() + long(r + V));
    long double sum = 0;
    for (size_t i = r; i < r + V; ++i) sum += std::exp((long double)(x[i] - top));
    sums.push_back(std::isinf(top) && top < 0 ? top : top + double(std::log(sum)));
  }
  return sums;
}

// Around the sizes of vectors, and beyond a part for each thread.
inline constexpr int64_t kSizes[] = {1, 2, 3, 31, 32, 33, 63, 100, 257};

inline double square_of(double x) { return x * x; }
inline double normal_mass(double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; }
inline double larger_than_zero(double x) { return x > 0 ? x : 0; }
inline double logistic(double x) {
  return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x));
}

inline std::vector<OpCase> shape_cases() {
  Tensor x = normal({3, 4, 6}, 1);
  return {
      {"reshape",
       {x},
       [](In in) {
         return mul(reshape(in[0], {8, -1}), reshape(in[0], {8, 9}));
       },
       each_number(square_of)},
      {"permute",
       {x},
       [](In in) {
         return permute(in[0], {2, 0, 1});
       },
       each_element({6, 3, 4}, [](X x, At c) { return x(c[1], c[2], c[0]); })},
      {"permute back",
       {x},
       [](In in) {
         return permute(in[0], {1, 2, 0});
       },
       each_element({4, 6, 3}, [](X x, At c) { return x(c[2], c[0], c[1]); })},
      {"slice",
       {x},
       [](In in) { return slice(in[0], -1, 2, 3); },
       each_element({3, 4, 3}, [](X x, At c) { return x(c[0], c[1], c[2] + 2); })},
      {"slices add up",
       {x},
       [](In in) { return mul(slice(in[0], 1, 0, 3), slice(in[0], 1, 1, 3)); },
       each_element({3, 3, 6}, [](X x, At c) { return x(c) * x(c[0], c[1] + 1, c[2]); })},
      {"split_heads",
       {x},
       [](In in) { return split_heads(in[0], 3); },
       each_element({3, 3, 4, 2}, [](X x, At c) { return x(c[0], c[2], c[1] * 2 + c[3]); })},
      {"split_heads, packed",
       {normal({2, 5, 3 * 2 * 4}, 3)},
       [](In in) {
         Tensor q = split_heads(in[0], 2, 0, 6), v = split_heads(in[0], 2, 4, 6);
         return mul(q, v);
       },
       each_element({2, 2, 5, 4},
                    [](X x, At c) {
                      const int64_t of_head = c[1] * 4 + c[3];
                      return x(c[0], c[2], of_head) * x(c[0], c[2], 2 * 8 + of_head);
                    })},
      {"repeat_heads",
       {normal({2, 3, 5, 4}, 4)},
       [](In in) { return repeat_heads(in[0], 3); },
       each_element({2, 9, 5, 4}, [](X x, At c) { return x(c[0], c[1] / 3, c[2], c[3]); })},
      {"merge_heads",
       {normal({2, 3, 5, 4}, 4)},
       [](In in) { return merge_heads(in[0]); },
       each_element({2, 5, 12}, [](X x, At c) { return x(c[0], c[2] / 4, c[1], c[2] % 4); })},
  };
}

inline Values dropped(In in) {
  const RandomSlice random{3, 4, 5};
  Values y = in[0].to_vector();
  for (size_t i = 0; i < y.size(); ++i) y[i] = random.uniform(i) < 0.3 ? 0 : y[i] / 0.7;
  return y;
}

inline std::vector<OpCase> number_cases(int64_t n) {
  const Tensor a = normal({n}, 10, Dtype::f32, 0, 3), b = normal({n}, 11);
  std::vector<OpCase> cases = {
      {"add", {a, b}, [](In in) { return add(in[0], in[1]); }, each_pair([](double a, double b) {
         return a + b;
       })},
      {"sub", {a, b}, [](In in) { return sub(in[0], in[1]); }, each_pair([](double a, double b) {
         return a - b;
       })},
      {"mul", {a, b}, [](In in) { return mul(in[0], in[1]); }, each_pair([](double a, double b) {
         return a * b;
       })},
      {"relu", {a}, [](In in) { return relu(in[0]); }, each_number(larger_than_zero)},
      {"silu", {a}, [](In in) { return silu(in[0]); }, each_number([](double x) {
         return x * logistic(x);
       })},
      {"gelu", {a}, [](In in) { return gelu(in[0]); }, each_number([](double x) {
         return x * normal_mass(x);
       })},
      {"gelu_tanh", {a}, [](In in) { return gelu_tanh(in[0]); }, each_number([](double x) {
         const double z = std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * std::pow(x, 3));
         return x * (1 + std::tanh(z)) / 2;
       })},
      {"sigmoid", {a}, [](In in) { return sigmoid(in[0]); }, each_number(logistic)},
      {"tanh", {a}, [](In in) { return tanh(in[0]); }, each_number([](double x) {
         return 2 * logistic(2 * x) - 1;
       })},
  };
  for (OpCase& c : cases) {
    c.name += join(" of ", n);
    c.tolerance = 2e-6;
    if (n > 1000) c.grad_tolerance = 0;
  }
  return cases;
}

inline std::vector<OpCase> elementwise_cases() {
  Tensor a = normal({5, 33}, 10, Dtype::f32, 0, 2);
  Tensor lengths = Tensor::from(std::vector<int64_t>{2, 0, 4}, {3});
  return {
      {"add to itself", {a}, [](In in) { return add(in[0], in[0]); }, each_number([](double x) {
         return 2 * x;
       })},
      {"square", {a}, [](In in) { return mul(in[0], in[0]); }, each_number(square_of)},
      {"scale", {a}, [](In in) { return scale(in[0], -1.7); }, each_number([](double x) {
         return -1.7 * x;
       })},
      {"dropout",
       {a},
       [](In in) {
         RandomStream random{3, 4, 5};
         return dropout(in[0], 0.3, random);
       },
       dropped},
      {"scale_rows",
       {normal({2, 3, 33}, 14), normal({2, 3}, 15)},
       [](In in) { return scale_rows(in[0], in[1]); },
       [](In in) {
         const Array x(in[0]), s(in[1]);
         return tabulate({2, 3, 33}, [&](const Coordinates& c) { return x(c) * s(c[0], c[1]); });
       }},
      {"zero_padding",
       {normal({3, 4, 5}, 16), lengths},
       [](In in) { return zero_padding(in[0], in[1]); },
       [](In in) {
         const Array x(in[0]), kept(in[1]);
         return tabulate(
             {3, 4, 5}, [&](const Coordinates& c) { return double(c[1]) < kept(c[0]) ? x(c) : 0; });
       }},
      {"attach_loss",
       {a, normal({1}, 17)},
       [](In in) { return attach_loss(in[0], mul(in[1], in[1])); },
       each_number([](double x) { return x; }),
       1e-5,
       0},
  };
}

inline OpCase running_mean_case(const Coordinates& shape) {
  return {join("running_mean of ", shape[1], " rows of ", shape[2]),
          {normal(Shape{shape[0], shape[1], shape[2]}, 20, Dtype::f32, 2)},
          [](In in) { return running_mean(in[0]); },
          each_element(shape,
                       [](X x, At c) {
                         long double sum = 0;
                         for (int64_t t = 0; t <= c[1]; ++t) sum += x(c[0], t, c[2]);
                         return double(sum / (long double)(c[1] + 1));
                       }),
          1e-5,
          shape[1] > 1000 ? 1e-5 : 1e-6};
}

inline Values layernorm_rows(In in, double eps) {
  const Values w = in[1].to_vector(), b = in[2].to_vector();
  Values y = in[0].to_vector();
  const size_t C = w.size();
  for (size_t r = 0; r < y.size(); r += C) {
    long double mean = 0, variance = 0;
    for (size_t c = 0; c < C; ++c) mean += y[r + c] / (long double)(C);
    for (size_t c = 0; c < C; ++c) {
      variance += (y[r + c] - mean) * (y[r + c] - mean) / (long double)(C);
    }
    for (size_t c = 0; c < C; ++c) {
      y[r + c] = double((y[r + c] - mean) / std::sqrt(variance + eps)) * w[c] + b[c];
    }
  }
  return y;
}

inline Values rmsnorm_rows(In in, double eps) {
  const Values w = in[1].to_vector();
  Values y = in[0].to_vector();
  const size_t C = w.size();
  for (size_t r = 0; r < y.size(); r += C) {
    long double square = 0;
    for (size_t c = 0; c < C; ++c) square += (long double)(y[r + c]) * y[r + c] / C;
    for (size_t c = 0; c < C; ++c) y[r + c] = double(y[r + c] / std::sqrt(square + eps)) * w[c];
  }
  return y;
}

// keys(b, t): how many keys row t of sequence b sees.
template <class Keys>
inline Values softmax_rows(In in, double scale, Keys keys) {
  const Array x(in[0]);
  return tabulate(x.shape, [&](const Coordinates& c) {
    const int64_t n = keys(c[0], c[2]);
    if (c[3] >= n) return 0.0;
    long double sum = 0;  // of exp(x_j - x): the reciprocal of the result
    for (int64_t j = 0; j < n; ++j) {
      sum += std::exp(scale * ((long double)(x(c[0], c[1], c[2], j)) - x(c)));
    }
    return double(1 / sum);
  });
}

inline std::vector<OpCase> sum_cases() {
  Tensor x = normal({2, 9, 33}, 20, Dtype::f32, 2);
  Tensor weight = Tensor::from(std::vector<float>{1, 0, 0.5, 2, 0}, {5});
  return {
      {"sum",
       {x},
       [](In in) { return sum(in[0]); },
       [](In in) { return Values{product_sum(in[0].to_vector(), Values(2 * 9 * 33, 1))}; }},
      {"dot",
       {x, normal({2, 9, 33}, 21)},
       [](In in) { return dot(in[0], in[1]); },
       [](In in) { return Values{product_sum(in[0].to_vector(), in[1].to_vector())}; }},
      {"dot with itself",
       {x},
       [](In in) { return dot(in[0], in[0]); },
       [](In in) { return Values{product_sum(in[0].to_vector(), in[0].to_vector())}; }},
      {"squared_distance",
       {normal({5, 33}, 22), normal({5, 33}, 23)},
       [=](In in) { return squared_distance(in[0], in[1], beside(weight, in[0])); },
       [](In in) {
         const Array a(in[0]), b(in[1]);
         const double weights[] = {1, 0, 0.5, 2, 0};
         double sum = 0;
         each({5, 33},
              [&](const Coordinates& c) { sum += weights[c[0]] * square_of(a(c) - b(c)); });
         return Values{sum};
       }},
  };
}

// The variance of a row of few columns may be tiny, which magnifies rounding: `eps` limits that.
inline std::vector<OpCase> norm_cases(int64_t R, int64_t C, double mean = 0) {
  const double eps = C < 4 ? 1e-2 : 1e-5, tolerance = C < 4 || mean > 0 ? 1e-4 : 1e-5;
  const double grad_tolerance = mean > 0 ? 0 : 1e-6;
  const Tensor x = normal({R, C}, 20, Dtype::f32, mean), w = normal({C}, 24);
  const std::string size = join(" of ", R, " x ", C, ", mean ", mean);
  return {{"layernorm" + size,
           {x, w, normal({C}, 25)},
           [=](In in) { return layernorm(in[0], in[1], in[2], eps); },
           [=](In in) { return layernorm_rows(in, eps); },
           tolerance,
           grad_tolerance},
          {"rmsnorm" + size,
           {x, w},
           [=](In in) { return rmsnorm(in[0], in[1], eps); },
           [=](In in) { return rmsnorm_rows(in, eps); },
           tolerance,
           grad_tolerance}};
}

// [B, H, T, S]: a row sees S keys, or those up to its own, or those of its sequence.
inline OpCase softmax_case(const Coordinates& shape, bool causal,
                           const std::vector<int64_t>& lengths = {}) {
  const Visibility visible{.causal = causal, .lengths = lengths_of(lengths)};
  return {join("softmax of ", shape[0], " x ", shape[2], " x ", shape[3], causal ? ", causal" : "",
               lengths.empty() ? "" : ", lengths"),
          {normal(Shape{shape[0], shape[1], shape[2], shape[3]}, 29)},
          [=](In in) { return softmax(in[0], 0.6, visible); },
          [=](In in) {
            return softmax_rows(in, 0.6, [=](int64_t b, int64_t t) {
              const int64_t length = lengths.empty() ? shape[3] : lengths[size_t(b)];
              if (!lengths.empty() && t >= length) return int64_t(0);
              return causal ? std::min(t + 1, shape[3]) : length;
            });
          }};
}

inline OpCase embedding_case(int64_t V, int64_t R, int64_t C) {
  return {join("embedding of ", V, " x ", C, ", ", R, " rows"),
          {normal({V, C}, 31), ids({R}, 32, V)},
          [](In in) { return embedding(in[0], in[1]); },
          [=](In in) {
            const Array table(in[0]), id(in[1]);
            return tabulate({R, C},
                            [&](const Coordinates& c) { return table(int64_t(id(c[0])), c[1]); });
          }};
}

// The sum is read once more, as a residual connection does, so that its gradient comes from two
// sides.
inline std::vector<OpCase> sum_norm_cases(const Shape& shape) {
  const Tensor x = normal(shape, 20, Dtype::f32, 2), residual = normal(shape, 23);
  const Shape channels{shape[shape.rank() - 1]};
  auto total = [](const Tensor& x, const Tensor& residual) {
    Tensor sum = x.to(Dtype::f64);
    const Values more = residual.to_vector();
    for (size_t i = 0; i < more.size(); ++i) sum.data<double>()[i] += more[i];
    return sum;
  };
  return {{join("add_layernorm of ", shape),
           {x, normal(channels, 24), normal(channels, 25), residual},
           [](In in) {
             const NormedSum s = add_layernorm(in[0], in[3], in[1], in[2]);
             return add(mul(s.sum, s.sum), s.normed);
           },
           [=](In in) {
             const Tensor sum = total(in[0], in[3]);
             Values y = layernorm_rows({sum, in[1], in[2]}, 1e-5);
             for (size_t i = 0; i < y.size(); ++i) y[i] += square_of(sum.data<double>()[i]);
             return y;
           }},
          {join("add_rmsnorm of ", shape),
           {x, normal(channels, 24), residual},
           [](In in) {
             const NormedSum s = add_rmsnorm(in[0], in[2], in[1]);
             return add(scale(s.sum, 3), s.normed);
           },
           [=](In in) {
             const Tensor sum = total(in[0], in[2]);
             Values y = rmsnorm_rows({sum, in[1]}, 1e-6);
             for (size_t i = 0; i < y.size(); ++i) y[i] += 3 * sum.data<double>()[i];
             return y;
           }}};
}

// Rows [R, V] of numbers times `factor` as log-probabilities.
inline Array log_probabilities(const Tensor& logits, double factor) {
  Array x(logits);
  for (double& value : x.values) value *= factor;
  const Values lse = log_sums(x.values, size_t(x.shape[1]));
  each(x.shape, [&](const Coordinates& c) { x[c] -= lse[size_t(c[0])]; });
  return x;
}

// Minus the log-probability of each target; 0 where it is -1.
inline Oracle log_losses(double factor) {
  return [=](In in) {
    const Array log_p = log_probabilities(in[0], factor), target(in[1]);
    return tabulate(target.shape, [&](const Coordinates& c) {
      return target(c) < 0 ? 0 : -log_p({c[0], int64_t(target(c))});
    });
  };
}

// KL of the teacher's distribution from that of the logits, over the ids listed for row r, and one
// bucket of all others.
template <class Listed>
inline Oracle divergences(const Tensor& teacher, double factor, Listed listed) {
  return [=](In in) {
    const Array log_q = log_probabilities(in[0], factor), log_p = log_probabilities(teacher, 1);
    Values y;
    for (int64_t r = 0; r < log_q.shape[0]; ++r) {
      const Coordinates ids = listed(r);
      double loss = 0, p_others = 0, q_others = 0;
      for (int64_t i = 0; i < log_q.shape[1]; ++i) {
        const double p = std::exp(log_p({r, i})), q = std::exp(log_q({r, i}));
        if (std::find(ids.begin(), ids.end(), i) == ids.end()) {
          p_others += p;
          q_others += q;
        } else {
          loss += p * (log_p({r, i}) - log_q({r, i}));
        }
      }
      y.push_back(p_others > 0 ? loss + p_others * std::log(p_others / q_others) : loss);
    }
    return y;
  };
}

inline std::vector<OpCase> loss_cases(int64_t V) {
  const int64_t R = 5, n = std::max<int64_t>(1, V / 7);
  Tensor logits = normal({R, V}, 40, Dtype::f32, 20, 2),
         teacher = normal({R, V}, 41, Dtype::f32, 0, 2);
  Tensor target = ids({R}, 42, V);
  target.data<int32_t>()[3] = -1;
  std::vector<int32_t> listed;
  for (int64_t i = 0; i < R * n; ++i) listed.push_back(int32_t((i / n + i % n * 5) % V));
  Tensor picked = Tensor::from(listed, {R, n});
  auto top = [=](const Tensor& logits) {
    Tensor all = teacher.to(Dtype::f64), values = Tensor::empty({R, n}, Dtype::f64);
    const Values lse = log_sums(all.to_vector(), size_t(V));
    for (int64_t i = 0; i < R * n; ++i) {
      values.data<double>()[i] = all.data<double>()[i / n * V + listed[size_t(i)]];
    }
    return TopLogits{beside(values, logits), picked.to(logits.device()),
                     beside(Tensor::from(lse, {R}), logits)};
  };
  auto of_row = [=](int64_t r) {
    return Coordinates(listed.begin() + r * n, listed.begin() + (r + 1) * n);
  };
  auto all = [=](int64_t) {
    Coordinates every;
    for (int64_t i = 0; i < V; ++i) every.push_back(i);
    return every;
  };
  std::vector<OpCase> cases = {
      {"cross_entropy",
       {logits, target},
       [](In in) { return cross_entropy(in[0], in[1]); },
       log_losses(1)},
      {"cross_entropy of logits made on the way",
       {logits, target},
       [](In in) { return cross_entropy(scale(in[0], 0.5), in[1]); },
       log_losses(0.5)},
      {"kl_logits",
       {logits},
       [=](In in) {
         return kl_logits(in[0], {beside(teacher, in[0]), {}, {}});
       },
       divergences(teacher, 1, all)},
      {"kl_logits, top values",
       {logits},
       [=](In in) { return kl_logits(in[0], top(in[0])); },
       divergences(teacher, 1, of_row)},
      {"kl_logits, top values, of logits made on the way",
       {logits},
       [=](In in) { return kl_logits(scale(in[0], 0.5), top(in[0])); },
       divergences(teacher, 0.5, of_row)},
  };
  for (OpCase& c : cases) {
    c.name += join(" of ", V);
    if (V > 1000) c.grad_tolerance = 1e-5;  // differences of sums of as many terms
  }
  return cases;
}

inline void append(std::vector<OpCase>& to, const std::vector<OpCase>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

inline std::vector<OpCase> all_elementwise() {
  std::vector<OpCase> cases = elementwise_cases();
  for (int64_t n : kSizes) append(cases, number_cases(n));
  append(cases, number_cases(40001));
  return cases;
}

inline std::vector<OpCase> all_sums() {
  std::vector<OpCase> cases = sum_cases();
  for (const Coordinates& shape : std::vector<Coordinates>{
           {3, 1, 1}, {3, 2, 100}, {3, 33, 64}, {3, 257, 3}, {2, 577, 6}, {1, 4481, 1}, {2, 0, 4}})
    append(cases, {running_mean_case(shape)});
  return cases;
}

// Rows of few, some and many registers of a warp, and of a block; more rows than one band.
inline std::vector<OpCase> all_rows() {
  std::vector<OpCase> cases;
  for (const Shape& shape : {Shape{2, 9, 33}, {3, 7}, {9, 200}, {5, 700}, {2, 1030}}) {
    append(cases, sum_norm_cases(shape));
  }
  for (int64_t C : kSizes) {
    if (C > 2) append(cases, norm_cases(3, C));
    if (C < 200) append(cases, {softmax_case({2, 2, C, C}, true)});
  }
  for (auto [R, C] :
       {std::pair<int64_t, int64_t>{130, 3}, {530, 33}, {9, 256}, {5, 700}, {3, 1024}, {2, 1025}}) {
    append(cases, norm_cases(R, C));
  }
  append(cases, norm_cases(3, 100, 100));
  for (bool causal : {true, false}) {
    append(cases,
           {softmax_case({2, 2, 7, 7}, causal, {4, 7}), softmax_case({2, 2, 4, 9}, causal),
            softmax_case({3, 2, 5, 5}, causal, {0, 5, 3}), softmax_case({2, 1, 3, 1023}, causal),
            softmax_case({2, 1, 3, 1100}, causal, {1100, 2})});
  }
  append(cases, {embedding_case(7, 1000, 1), embedding_case(7, 5, 33), embedding_case(7, 65, 64),
                 embedding_case(7, 65, 257), embedding_case(1, 200, 3), embedding_case(9, 0, 5),
                 embedding_case(3, 400, 130), embedding_case(200, 1500, 7),
                 embedding_case(257, 1024, 2), embedding_case(70000, 3000, 4)});
  return cases;
}

inline std::vector<OpCase> all_losses() {
  std::vector<OpCase> cases;
  for (int64_t V : {2, 3, 31, 37, 257, 1024, 2100}) append(cases, loss_cases(V));
  return cases;
}

}  // namespace brine::test::table
