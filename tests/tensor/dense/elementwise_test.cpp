// Elementwise kernels in place and of special values; axpby, dropout, rows against formulas.
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
};

Unary activation(const char* name, Activation of) {
  return {name, [=](Tensor y, Tensor x) { BRINE_CALL(y, activation, y, x, of); }};
}

std::vector<Unary> unary() {
  return {activation("relu", Activation::relu),
          activation("gelu", Activation::gelu),
          activation("gelu_tanh", Activation::gelu_tanh),
          activation("silu", Activation::silu),
          {"axpby", [](Tensor y, Tensor x) { BRINE_CALL(y, axpby, y, x, -2.5, 0.0); }}};
}

}  // namespace

TEST_CASE("elementwise kernels give the same bits in place") {
  for (Dtype dtype : {Dtype::f32, Dtype::f64}) {
    for (int64_t n : kSizes) {
      const Tensor a = normal({n}, 1, dtype, 0, 3);
      for (const Unary& k : unary()) {
        Tensor y = Tensor::like(a), inplace = a.clone();
        k.kernel(y, a);
        k.kernel(inplace, inplace);
        CHECK_MESSAGE(same_bits(inplace, y), k.name << " in place");
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
