// The table of dense kernels that no op of tests/ops/op_table.h proves: tests/tensor compares them
// with oracles in f64, tests/cuda a device with the CPU.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "tensor/kernels/dense.h"
#include "tests/ops/op_table.h"
#include "tests/special_values.h"

namespace brine::test::table {

// Numbers, and what their errors are measured against.
struct Expected {
  Values y, bound;
};

struct KernelCase {
  std::string name;
  std::vector<Tensor> inputs;  // f32 ones are run in each of `types`, others are passed unchanged
  std::function<std::vector<Tensor>(In)> run;       // the outputs; it may write to its inputs
  std::function<std::vector<Expected>(In)> oracle;  // from the same inputs
  double f32 = 1e-6, f64 = 1e-13;                   // the largest errors, times the bounds
  std::vector<Dtype> types = {Dtype::f64, Dtype::f32};
};

// Bounds that are the numbers' sizes, plus `least`.
inline Expected by_size(const Values& y, double least = 0) {
  Expected e{y, y};
  for (double& bound : e.bound) bound = std::abs(bound) + least;
  return e;
}

inline bool within(const Tensor& got, const Expected& e, double eps) {
  const Values y = got.to_vector();
  if (y.size() != e.y.size()) return false;
  for (size_t i = 0; i < y.size(); ++i) {
    if (!(y[i] == e.y[i] || (std::isnan(y[i]) && std::isnan(e.y[i])) ||
          (std::isfinite(e.y[i]) && std::abs(y[i] - e.y[i]) <= eps * e.bound[i]))) {
      MESSAGE("element " << i << ": " << y[i] << " against " << e.y[i]);
      return false;
    }
  }
  return true;
}

// On the CPU: the outputs within their bounds, of the same bits on any number of threads.
inline void check_kernel(const KernelCase& c) {
  for (Dtype type : c.types) {
    INFO(c.name << " " << name_of(type));
    auto outputs = [&] {
      std::vector<Tensor> x = to_dtype(c.inputs, type);
      for (Tensor& input : x) input = input.clone();
      return c.run(x);
    };
    const std::vector<Tensor> y = outputs();
    const std::vector<Expected> expected = c.oracle(to_dtype(c.inputs, type));
    REQUIRE(y.size() == expected.size());
    for (size_t i = 0; i < y.size(); ++i) {
      CHECK(within(y[i], expected[i], type == Dtype::f64 ? c.f64 : c.f32));
    }
    for (int n : {1, 2, 3}) {
      Threads set(n);
      const std::vector<Tensor> again = outputs();
      for (size_t i = 0; i < y.size(); ++i) CHECK_MESSAGE(same_bits(again[i], y[i]), n);
    }
  }
}

// ---- sums
template <class F>
double sum_of(const Tensor& x, F f) {
  long double sum = 0;
  for (double a : x.to_vector()) sum += f(a);
  return double(sum);
}

// A kernel that makes one number of `type`; undefined: of the input's.
template <class Kernel>
auto to_one(std::optional<Dtype> type, Kernel kernel) {
  return [=](In x) {
    Tensor y = Tensor::empty({1}, type.value_or(x[0].dtype()), x[0].device());
    kernel(y, x[0]);
    return std::vector{y};
  };
}

inline std::vector<KernelCase> reduce_cases() {
  auto sum_all = to_one({}, [](Tensor y, Tensor x) { BRINE_CALL(y, sum_all, y, x); });
  auto square_sum = to_one(Dtype::f64, [](Tensor y, Tensor x) { BRINE_CALL(y, square_sum, y, x); });
  auto count = to_one(Dtype::i64, [](Tensor y, Tensor x) { BRINE_CALL(y, count_nonfinite, y, x); });
  auto sum = [](In x) {
    auto same = [](double a) { return a; };
    auto size = [](double a) { return std::abs(a); };
    return std::vector{Expected{{sum_of(x[0], same)}, {sum_of(x[0], size)}}};
  };
  auto squares = [](In x) {
    return std::vector{by_size({sum_of(x[0], [](double a) { return a * a; })})};
  };
  auto bad = [](In x) {
    return std::vector{by_size({sum_of(x[0], [](double a) { return !std::isfinite(a); })})};
  };
  auto sum_rows = [](In x) {
    BRINE_CALL(x[0], sum_rows, x[0], x[1]);
    return std::vector{x[0]};
  };
  auto columns = [](In x) {
    Values y = x[0].to_vector(), v = x[1].to_vector();
    for (size_t i = 0; i < v.size(); ++i) y[i % y.size()] += v[i];
    return std::vector{v.empty() ? Expected{y, Values(y.size(), 0)} : by_size(y)};
  };
  std::vector<KernelCase> cases;
  for (int64_t n : {0, 1, 2, 3, 31, 32, 33, 63, 100, 257, 300, 8192, 8193, 50001, 100001}) {
    for (double mean : {0.0, 1e4}) {
      const Tensor x = normal({n}, 1, Dtype::f32, mean);
      cases.push_back({join("sum_all of ", n, ", mean ", mean), {x}, sum_all, sum});
      cases.push_back({join("square_sum of ", n), {x}, square_sum, squares, 1e-12, 1e-12});
    }
    for (Dtype type : {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16, Dtype::i32, Dtype::u8}) {
      Values v(size_t(n), 1.0);
      for (size_t i = 0; i < v.size() && is_float(type); i += 7) {
        v[i] = i % 3 ? kNan : i % 2 ? -kInf : kInf;
      }
      const Tensor x = Tensor::from(v, {n}).to(type);
      cases.push_back({join("count_nonfinite of ", n, " ", type), {x}, count, bad, 0, 0});
    }
  }
  for (const Shape& shape : {Shape{0, 5},
                             {5, 0},
                             {1, 1},
                             {3, 2},
                             {3, 7},
                             {31, 33},
                             {100, 33},
                             {100, 257},
                             {2000, 100},
                             {9000, 1},
                             {5000, 6},
                             {65, 5000},
                             {5, 20000}}) {
    const std::vector<Tensor> in = {normal({shape[1]}, 6), normal(shape, 5, Dtype::f32, 3)};
    cases.push_back({join("sum_rows of ", shape), in, sum_rows, columns, 2e-5, 1e-11});
  }
  return cases;
}

// ---- optimizer: the algorithm of the paper, of memory that starts at `start`
inline KernelCase adamw_case(int64_t n, int64_t start) {
  const Shape all{n + start};
  // States of 0 as at the beginning of training, and others.
  std::vector<Tensor> inputs = {normal(all, 1), Tensor::zeros(all), Tensor::zeros(all)};
  if (start > 0) inputs = {normal(all, 1), normal(all, 2), uniform(all, 3, 0, 1)};
  for (uint64_t step : {1, 2, 3, 4}) {
    inputs.push_back(normal(all, 10 + step, Dtype::f32, 0, step == 3 ? 1e-6 : 2));
  }
  auto run = [=](In x) {
    auto part = [&](const Tensor& t) { return t.slice(0, start, n); };
    for (int64_t step = 1; step <= 4; ++step) {
      const AdamwStep a{.learning_rate = 0.01 * double(step),
                        .beta1 = 0.9,
                        .beta2 = 0.98,
                        .eps = 1e-6,
                        .weight_decay = 0.1,
                        .grad_scale = 0.5,
                        .step = step};
      BRINE_CALL(x[0], adamw, part(x[0]), part(x[1]), part(x[2]), part(x[size_t(2 + step)]), a);
    }
    return std::vector{x[0], x[1], x[2]};
  };
  auto oracle = [=](In x) {
    Values w = x[0].to_vector(), m = x[1].to_vector(), v = x[2].to_vector();
    for (int step = 1; step <= 4; ++step) {
      const Values g = x[size_t(2 + step)].to_vector();
      for (size_t i = size_t(start); i < w.size(); ++i) {
        const double gradient = 0.5 * g[i];
        m[i] = 0.9 * m[i] + 0.1 * gradient;
        v[i] = 0.98 * v[i] + 0.02 * gradient * gradient;
        const double mean = m[i] / (1 - std::pow(0.9, step));
        const double square = v[i] / (1 - std::pow(0.98, step));
        w[i] -= 0.01 * step * (mean / (std::sqrt(square) + 1e-6) + 0.1 * w[i]);
      }
    }
    return std::vector{by_size(w, 1), by_size(m, 1), by_size(v, 1)};
  };
  return {join("adamw of ", n, " from ", start), inputs, run, oracle, 1e-6, 1e-14};
}

inline std::vector<KernelCase> adamw_cases() {
  std::vector<KernelCase> cases;
  for (int64_t n : {0, 1, 3, 7, 33, 257, 2000, 10001, 40001}) {
    for (int64_t start : {0, 1}) cases.push_back(adamw_case(n, start));
  }
  return cases;
}

// ---- products
// An input is viewed after it is copied to a device: a copy would lose the strides.
using View = Tensor (*)(const Tensor&);

inline Tensor unchanged(const Tensor& x) { return x; }
inline Tensor flipped(const Tensor& x) { return x.transpose(-1, -2); }
// [.., M, N + 3] with columns 1 .. N + 1.
inline Tensor inner(const Tensor& x) { return x.slice(-1, 1, x.dim(-1) - 3); }
// [B, T, H, d] as [B, H, T, d].
inline Tensor heads(const Tensor& x) { return x.transpose(1, 2); }
// The keys of [B, T, 3, H, d] as [B, H, T, d].
inline Tensor packed_keys(const Tensor& x) { return x.select(2, 1).permute({0, 2, 1, 3}); }
inline Tensor heads_flipped(const Tensor& x) { return flipped(heads(x)); }
// One matrix for all.
inline Tensor first(const Tensor& x) { return x.slice(0, 0, 1); }
// [B, M, 2 N] with every second column: no leading dimension describes it.
inline Tensor even_columns(const Tensor& x) {
  return x.as_strided({x.dim(0), x.dim(1), x.dim(2) / 2}, {x.stride(0), x.stride(1), 2});
}
// [20] as rows that overlap, and as rows that are the same.
inline Tensor overlapping(const Tensor& x) { return x.as_strided({8, 6}, {2, 1}); }
inline Tensor overlapping_columns(const Tensor& x) { return x.as_strided({6, 8}, {1, 0}); }

struct Matmul {
  Shape y = {}, a = {}, b = {};
  View cut_y = unchanged, cut_a = unchanged, cut_b = unchanged;
  bool ta = false, tb = false;
  double alpha = 1, beta = 0;
  Dtype a_type = Dtype::f32, b_type = Dtype::f32;  // f32: as y
};

// alpha op(a) op(b) + beta y in y's shape; bounds: sums of sizes.
inline Expected product(const Tensor& y, const Tensor& a, const Tensor& b, const Matmul& c) {
  Shape rows = y.shape(), columns = y.shape();
  const int64_t M = y.dim(-2), N = y.dim(-1), K = a.dim(c.ta ? -2 : -1);
  rows[rows.rank() - 1] = columns[columns.rank() - 1] = K;
  columns[columns.rank() - 2] = N;
  const Values before = y.to_vector();
  const Values u = broadcast_to(c.ta ? flipped(a) : a, rows).to_vector();
  const Values v = broadcast_to(c.tb ? b : flipped(b), columns).to_vector();
  Expected e;
  for (int64_t at = 0; at < y.numel(); ++at) {
    const double* row = u.data() + at / N * K;
    const double* column = v.data() + (at / N / M * N + at % N) * K;
    double sum = 0, size = 0;
    for (int64_t k = 0; k < K; ++k) {
      sum += row[k] * column[k];
      size += std::abs(row[k] * column[k]);
    }
    const double old = c.beta == 0 ? 0 : c.beta * before[size_t(at)];
    e.y.push_back(c.alpha * sum + old);
    e.bound.push_back(std::abs(c.alpha) * size + std::abs(old));
  }
  return e;
}

inline KernelCase matmul_case(const std::string& name, const Matmul& c) {
  auto stored = [](const Tensor& x, Dtype type) { return type == Dtype::f32 ? x : x.to(type); };
  const bool halves = c.a_type != Dtype::f32 || c.b_type != Dtype::f32;
  auto run = [=](In x) {
    if (c.beta == 0) BRINE_CALL(x[0], fill, c.cut_y(x[0]), kNan);  // nothing of it may be read
    BRINE_CALL(x[0], matmul, c.cut_y(x[0]), c.cut_a(x[1]), c.cut_b(x[2]), c.ta, c.tb, c.alpha,
               c.beta);
    return std::vector{x[0], c.cut_y(x[0])};
  };
  auto oracle = [=](In x) {
    // What is outside of the view keeps its values; the view itself is compared by its own.
    Expected whole{x[0].to_vector(), {}};
    const Tensor touched = Tensor::zeros(x[0].shape());
    fill(c.cut_y(touched), kInf);
    whole.bound = touched.to_vector();
    return std::vector{whole, product(c.cut_y(x[0]), c.cut_a(x[1]), c.cut_b(x[2]), c)};
  };
  return {join("matmul ", name, c.ta ? " ta" : "", c.tb ? " tb" : ""),
          {normal(c.y, 1), stored(normal(c.a, 2), c.a_type), stored(normal(c.b, 3), c.b_type)},
          run,
          oracle,
          2e-6,
          1e-14,
          halves ? std::vector{Dtype::f32} : std::vector{Dtype::f64, Dtype::f32}};
}

// Every transpose, size and scale; of views: the flags' opposites, and columns out of the middle.
inline std::vector<KernelCase> matmul_sizes() {
  std::vector<KernelCase> cases;
  for (bool ta : {false, true}) {
    for (bool tb : {false, true}) {
      for (auto [M, N, K] :
           {std::array{1, 1, 1}, {1, 7, 5}, {9, 1, 4}, {33, 17, 70}, {8, 64, 320}}) {
        const Shape y{M, N}, a = ta ? Shape{K, M} : Shape{M, K}, b = tb ? Shape{N, K} : Shape{K, N};
        const Shape wide{M, N + 3}, wide_a{a[0], a[1] + 3}, wide_b{b[0], b[1] + 3};
        const std::string size = join(M, " ", N, " ", K);
        cases.push_back(matmul_case(size, {.y = y, .a = a, .b = b, .ta = ta, .tb = tb}));
        Matmul c{.y = y, .a = a, .b = b, .ta = ta, .tb = tb, .alpha = -0.3, .beta = 0.7};
        cases.push_back(matmul_case(size + " scaled", c));
        c = {wide, {a[1], a[0]}, {b[1], b[0]}, inner, flipped, flipped, ta, tb, 1, 1};
        cases.push_back(matmul_case(size + " flipped views", c));
        c = {wide, wide_a, wide_b, inner, inner, inner, ta, tb};
        cases.push_back(matmul_case(size + " inner columns", c));
      }
    }
  }
  return cases;
}

// Two products of [M, K] and [K, N], in every transposition.
inline void add_ways(std::vector<KernelCase>& cases, const std::string& name, int64_t M, int64_t N,
                     int64_t K, Matmul c) {
  c.y = {2, M, N};
  for (int way = 0; way < 4; ++way) {
    c.ta = way & 1;
    c.tb = way & 2;
    c.a = c.ta ? Shape{2, K, M} : Shape{2, M, K};
    c.b = c.tb ? Shape{2, N, K} : Shape{2, K, N};
    cases.push_back(matmul_case(name, c));
  }
}

inline std::vector<KernelCase> matmul_batches() {
  const Shape y{3, 5, 7}, a{3, 5, 4}, b{3, 4, 7}, one_b{1, 4, 7}, packed{2, 37, 3, 3, 16};
  const std::pair<const char*, Matmul> all[] = {
      {"batch", {y, a, b}},
      {"more than a grid's axis", {{65537, 2, 1}, {65537, 2, 2}, {65537, 2, 1}}},
      {"shared b", {.y = y, .a = a, .b = one_b, .beta = 1}},
      {"b of lower rank", {y, a, {4, 7}}},
      {"batch, subtracted", {.y = y, .a = a, .b = b, .alpha = 0.25, .beta = -0.5}},
      {"shared a", {y, {1, 5, 4}, b}},
      {"both shared", {y, {1, 5, 4}, one_b}},
      {"one row each", {{4, 1, 7}, {4, 1, 6}, {1, 6, 7}}},
      {"shared b", {.y = y, .a = {3, 4, 5}, .b = {1, 7, 4}, .ta = true, .tb = true}},
      {"crossed sharing", {{2, 3, 5, 7}, {2, 1, 5, 4}, {1, 3, 4, 7}}},
      {"heads between the tokens",
       {{2, 6, 3, 8}, {2, 6, 3, 5}, {2, 8, 3, 5}, heads, heads, heads, false, true}},
      {"heads, scores in order",
       {.y = {2, 3, 6, 8},
        .a = {2, 6, 3, 5},
        .b = {2, 8, 3, 5},
        .cut_a = heads,
        .cut_b = heads_flipped,
        .alpha = 0.5}},
      {"packed heads",
       {.y = {2, 3, 37, 37},
        .a = packed,
        .b = packed,
        .cut_a = packed_keys,
        .cut_b = packed_keys,
        .tb = true,
        .alpha = 0.25}},
      {"values of packed heads",
       {{2, 37, 3, 16}, {2, 3, 37, 37}, packed, heads, unchanged, packed_keys}},
      {"b's first", {.y = {4, 3, 6, 8}, .a = {4, 3, 6, 5}, .b = {4, 3, 5, 8}, .cut_b = first}},
      {"every second column",
       {.y = {4, 33, 17}, .a = {4, 33, 40}, .b = {1, 17, 20}, .cut_a = even_columns, .tb = true}},
      {"overlapping rows", {.y = {8, 5}, .a = {20}, .b = {6, 5}, .cut_a = overlapping}},
      {"the same rows",
       {.y = {8, 5}, .a = {20}, .b = {6, 5}, .cut_a = overlapping_columns, .ta = true}},
      {"no matrices", {{0, 5, 7}, {0, 5, 4}, {0, 4, 7}}},
      {"no rows", {{2, 0, 7}, {2, 0, 4}, {2, 4, 7}}},
      {"an empty sum", {.y = {2, 5, 7}, .a = {2, 5, 0}, .b = {2, 0, 7}, .beta = 0.5}},
      {"an empty sum, cut", {{2, 5, 10}, {2, 5, 0}, {2, 0, 7}, inner}}};
  std::vector<KernelCase> cases;
  for (const auto& [name, c] : all) cases.push_back(matmul_case(name, c));
  for (double beta : {0.0, 1.0, -0.5}) {
    add_ways(cases, join("batch, beta ", beta), 33, 65, 31, {.alpha = 0.25, .beta = beta});
  }
  return cases;
}

inline std::vector<KernelCase> matmul_halves() {
  std::vector<KernelCase> cases;
  const Dtype pairs[][2] = {{Dtype::bf16, Dtype::bf16},
                            {Dtype::bf16, Dtype::f32},
                            {Dtype::f16, Dtype::f16},
                            {Dtype::f32, Dtype::f16},
                            {Dtype::f16, Dtype::bf16}};
  for (auto [left, right] : pairs) {
    for (auto [K, beta] : {std::pair{31, 0.0}, {31, 1.0}, {257, 1.0}, {3001, 1.0}}) {
      const Matmul c{.alpha = 0.5, .beta = beta, .a_type = left, .b_type = right};
      add_ways(cases, join(left, " x ", right, ", K ", K), 33, 20, K, c);
    }
  }
  return cases;
}

// Few rows x [R, I] by weights cut out of [O, 2 I], with a bias or without.
inline KernelCase thin_linear_case(int64_t R, int64_t I, int64_t O, bool bias) {
  auto run = [=](In x) {
    Tensor y = Tensor::empty({R, O}, x[0].dtype(), x[0].device());
    const Tensor b = bias ? x[2].slice(0, 1, O) : Tensor();
    BRINE_CALL(y, thin_linear, y, x[0], x[1].slice(1, I / 2, I), b);
    return std::vector{y};
  };
  auto oracle = [=](In x) {
    const Tensor rows = broadcast_to(x[2].slice(0, 1, O), {R, O});
    const Matmul c{.tb = true, .beta = bias ? 1.0 : 0.0};
    return std::vector{product(rows, x[0], x[1].slice(1, I / 2, I), c)};
  };
  return {join("thin_linear ", R, " ", I, " ", O, bias ? " with a bias" : ""),
          {normal({R, I}, 1), normal({O, 2 * I}, 2), normal({O + 1}, 3)},
          run,
          oracle,
          2e-6,
          1e-14};
}

inline std::vector<KernelCase> thin_linear_cases() {
  std::vector<KernelCase> cases;
  for (bool bias : {false, true}) {
    for (int64_t R : {0, 1, 2, 5, 32, 33, 70}) {
      for (int64_t I : {1, 4, 30, 260}) {
        for (int64_t O : {1, 6, 19}) cases.push_back(thin_linear_case(R, I, O, bias));
      }
    }
    cases.push_back(thin_linear_case(7, 63, 33, bias));
    cases.push_back(thin_linear_case(7, 257, 130, bias));
  }
  return cases;
}

// ---- losses
inline std::vector<KernelCase> log_sum_exp_cases() {
  auto run = [](In x) {
    Tensor y = Tensor::empty({x[0].dim(0)}, x[0].dtype(), x[0].device());
    BRINE_CALL(y, log_sum_exp, y, x[0]);
    return std::vector{y};
  };
  auto oracle = [](In x) {
    Expected e = by_size(log_sums(x[0].to_vector(), size_t(x[0].dim(1))));
    for (double& bound : e.bound) bound = std::max(bound, 1.0);
    return std::vector{e};
  };
  std::vector<KernelCase> cases;
  for (int64_t V :
       {1, 2, 3, 5, 31, 32, 33, 40, 63, 100, 257, 1023, 1024, 2048, 2049, 5003, 10000}) {
    for (double mean : {0.0, -500.0, 3e4}) {
      const Tensor x = normal({V % 2 ? 5 : 17, V}, 1, Dtype::f32, mean, 4);
      // Of minus infinities, of numbers with infinity, of NaN.
      std::fill_n(x.data<float>(), V, -INFINITY);
      x.data<float>()[V] = -INFINITY;
      x.data<float>()[2 * V + V / 2] = INFINITY;
      x.data<float>()[3 * V + V - 1] = NAN;
      const std::string name = join("log_sum_exp of ", V, ", mean ", mean);
      cases.push_back({name, {x}, run, oracle, 3e-7, 1e-14});
    }
  }
  cases.push_back({"log_sum_exp of no rows", {Tensor::empty({0, 5})}, run, oracle});
  return cases;
}

}  // namespace brine::test::table
