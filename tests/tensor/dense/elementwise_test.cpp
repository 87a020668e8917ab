// Elementwise kernels against plain double formulas.
#include "tensor/kernels/dense.h"
#include "tests/gradcheck.h"
#include "tests/special_values.h"

using namespace brine;
using namespace brine::test;

namespace {

const std::vector<int64_t> kSizes = {1, 2, 3, 31, 32, 33, 63, 100, 257, 40001};

struct Unary {
  const char* name;
  std::function<void(Tensor, Tensor)> kernel;
  std::function<double(double)> formula;
};

struct Binary {
  const char* name;
  std::function<void(Tensor, Tensor, Tensor)> kernel;
  std::function<double(double, double)> formula;
  // The tolerance is multiplied by it: an exponent of 70 has 70 times the rounding of its argument.
  double amplified = 1;
};

double cdf(double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; }
double density(double x) { return std::exp(-x * x / 2) / std::sqrt(8 * std::atan(1.0)); }
double logistic(double x) { return 1 / (1 + std::exp(-x)); }
const double kRoot = std::sqrt(2 / std::acos(-1.0));
double gelu_tanh_of(double x) {
  return x / 2 * (1 + std::tanh(kRoot * (x + 0.044715 * x * x * x)));
}
double gelu_tanh_slope(double x) {
  const double u = 2 * kRoot * (x + 0.044715 * x * x * x);  // 1 + tanh(u / 2) = 2 logistic(u)
  return logistic(u) * (1 + 2 * x * logistic(-u) * kRoot * (1 + 3 * 0.044715 * x * x));
}

std::vector<Unary> unary() {
  return {{"relu", [](Tensor y, Tensor x) { BRINE_CALL(y, activation, y, x, Activation::relu); },
           [](double x) { return x > 0 ? x : 0; }},
          {"gelu", [](Tensor y, Tensor x) { BRINE_CALL(y, activation, y, x, Activation::gelu); },
           [](double x) { return x * cdf(x); }},
          {"gelu_tanh",
           [](Tensor y, Tensor x) { BRINE_CALL(y, activation, y, x, Activation::gelu_tanh); },
           gelu_tanh_of},
          {"silu", [](Tensor y, Tensor x) { BRINE_CALL(y, activation, y, x, Activation::silu); },
           [](double x) { return x * logistic(x); }},
          {"sigmoid", [](Tensor y, Tensor x) { BRINE_CALL(y, sigmoid, y, x); }, logistic},
          {"tanh", [](Tensor y, Tensor x) { BRINE_CALL(y, tanh, y, x); },
           [](double x) { return std::tanh(x); }},
          {"axpby", [](Tensor y, Tensor x) { BRINE_CALL(y, axpby, y, x, -2.5, 0.0); },
           [](double x) { return -2.5 * x; }}};
}

std::vector<Binary> binary() {
  return {
      {"add", [](Tensor y, Tensor a, Tensor b) { BRINE_CALL(y, add, y, a, b); },
       [](double a, double b) { return a + b; }},
      {"sub", [](Tensor y, Tensor a, Tensor b) { BRINE_CALL(y, sub, y, a, b); },
       [](double a, double b) { return a - b; }},
      {"mul", [](Tensor y, Tensor a, Tensor b) { BRINE_CALL(y, mul, y, a, b); },
       [](double a, double b) { return a * b; }},
      {"relu_backward",
       [](Tensor y, Tensor a, Tensor b) {
         BRINE_CALL(y, activation_backward, y, a, b, Activation::relu);
       },
       [](double g, double y) { return y > 0 ? g : 0; }},
      {"gelu_backward",
       [](Tensor y, Tensor a, Tensor b) {
         BRINE_CALL(y, activation_backward, y, a, b, Activation::gelu);
       },
       [](double g, double x) { return g * (cdf(x) + x * density(x)); }},
      {"gelu_tanh_backward",
       [](Tensor y, Tensor a, Tensor b) {
         BRINE_CALL(y, activation_backward, y, a, b, Activation::gelu_tanh);
       },
       [](double g, double x) { return g * gelu_tanh_slope(x); }, 4},
      {"silu_backward",
       [](Tensor y, Tensor a, Tensor b) {
         BRINE_CALL(y, activation_backward, y, a, b, Activation::silu);
       },
       [](double g, double x) { return g * (logistic(x) + x * logistic(x) * logistic(-x)); }},
      {"sigmoid_backward",
       [](Tensor y, Tensor a, Tensor b) { BRINE_CALL(y, sigmoid_backward, y, a, b); },
       [](double g, double y) { return g * y * (1 - y); }},
      {"tanh_backward", [](Tensor y, Tensor a, Tensor b) { BRINE_CALL(y, tanh_backward, y, a, b); },
       [](double g, double y) { return g * (1 - y * y); }}};
}

}  // namespace

TEST_CASE("elementwise kernels equal their formulas") {
  for (Dtype dtype : {Dtype::f32, Dtype::f64}) {
    const double tolerance = dtype == Dtype::f32 ? 1e-6 : 1e-14;
    for (int64_t n : kSizes) {
      Tensor a = normal({n}, 1, dtype, 0, 3), b = normal({n}, 2, dtype, 0, 3);
      const std::vector<double> va = a.to_vector(), vb = b.to_vector();
      std::vector<double> expected(va.size());
      for (const Unary& k : unary()) {
        for (size_t i = 0; i < va.size(); ++i) expected[i] = k.formula(va[i]);
        Tensor y = Tensor::like(a);
        k.kernel(y, a);
        CHECK(close(y.to_vector(), expected, tolerance, tolerance, k.name));
        Tensor inplace = a.clone();
        k.kernel(inplace, inplace);
        CHECK_MESSAGE(same_bits(inplace, y), k.name << " in place");
      }
      for (const Binary& k : binary()) {
        for (size_t i = 0; i < va.size(); ++i) expected[i] = k.formula(va[i], vb[i]);
        Tensor y = Tensor::like(a);
        k.kernel(y, a, b);
        const double of = k.amplified * tolerance;
        CHECK(close(y.to_vector(), expected, of, of, k.name));
      }
    }
  }
}

TEST_CASE("elementwise kernels pass NaN on and take infinities") {
  for (Dtype dtype : {Dtype::f32, Dtype::f64}) {
    Tensor x = Tensor::from(std::vector<double>{kNan, kInf, -kInf, 0, -0.0}, {5}).to(dtype);
    for (const Unary& k : unary()) {
      Tensor y = Tensor::like(x);
      k.kernel(y, x);
      CHECK_MESSAGE(std::isnan(y.to_vector()[0]), k.name);
      CHECK_MESSAGE(!std::isnan(y.to_vector()[3]), k.name);
    }
    Tensor y = Tensor::like(x);
    BRINE_CALL(y, sigmoid, y, x);
    CHECK(close(y.to_vector(), {kNan, 1, 0, 0.5, 0.5}, 0, 0));
    BRINE_CALL(y, activation, y, x, Activation::relu);
    CHECK(close(y.to_vector(), {kNan, kInf, 0, 0, 0}, 0, 0));
    BRINE_CALL(y, activation, y, x, Activation::gelu);
    CHECK(y.to_vector()[1] == kInf);
  }
}

TEST_CASE("axpby adds to y, and does not read it when beta is 0") {
  Tensor x = normal({100}, 3), y = normal({100}, 4), before = y.clone();
  BRINE_CALL(y, axpby, y, x, 0.5, -2.0);
  for (size_t i = 0; i < 100; ++i) {
    CHECK(y.to_vector()[i] ==
          doctest::Approx(0.5 * x.to_vector()[i] - 2 * before.to_vector()[i]).epsilon(1e-6));
  }
  Tensor fresh = Tensor::full({100}, kNan);
  BRINE_CALL(fresh, axpby, fresh, x, 2.0, 0.0);
  CHECK(std::isfinite(largest(fresh.to_vector())));
}

TEST_CASE("dropout keeps the elements that its random numbers select, with any number of threads") {
  for (int64_t n : kSizes) {
    for (double p : {0.1, 0.5, 0.9}) {
      const RandomSlice slice{42, 7, 1000};
      Tensor x = normal({n}, 5), y = Tensor::like(x);
      BRINE_CALL(y, dropout, y, x, p, slice);
      const std::vector<double> vx = x.to_vector();
      std::vector<double> expected(vx.size());
      for (size_t i = 0; i < vx.size(); ++i) {
        expected[i] = slice.uniform(i) >= p ? vx[i] / (1 - p) : 0.0;
      }
      CHECK(close(y.to_vector(), expected, 0, 1e-6, "dropout"));
      for (int threads : {1, 3}) {
        Threads set(threads);
        Tensor z = Tensor::like(x);
        BRINE_CALL(z, dropout, z, x, p, slice);
        CHECK(same_bits(y, z));
      }
    }
  }
}

TEST_CASE("kernels over rows") {
  for (int64_t C : {1, 3, 33, 257, 20000}) {
    const int64_t R = 7;
    Tensor x = normal({R, C}, 6), s = normal({R}, 8), y = Tensor::like(x);
    const auto vx = x.to_vector(), vs = s.to_vector();
    std::vector<double> products(vx.size());
    for (size_t i = 0; i < vx.size(); ++i) products[i] = vx[i] * vs[i / size_t(C)];
    BRINE_CALL(y, scale_rows, y, x, s);
    CHECK(close(y.to_vector(), products, 1e-6, 1e-6, "scale_rows"));
  }
}

TEST_CASE("zero_padding clears rows at and beyond the length, whatever they contain") {
  Tensor x = normal({3, 5, 2, 3}, 9), lengths = Tensor::from(std::vector<int64_t>{0, 3, 5}, {3});
  x.data<float>()[0] = float(kNan);
  Tensor y = Tensor::like(x);
  BRINE_CALL(y, zero_padding, y, x, lengths);
  std::vector<double> expected = x.to_vector();
  for (size_t i = 0; i < expected.size(); ++i) {
    const size_t b = i / 30, t = i % 30 / 6;
    if ((b == 0) || (b == 1 && t >= 3)) expected[i] = 0;
  }
  CHECK(close(y.to_vector(), expected, 0, 0));
  BRINE_CALL(x, zero_padding, x, x, lengths);
  CHECK(same_bits(x, y));
}
