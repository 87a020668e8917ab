// Reductions against sums in long double.
#include "tensor/kernels/dense.h"
#include "tests/steady.h"

using namespace brine;
using namespace brine::test;

namespace {

const std::vector<int64_t> kReducedSizes = {1, 2, 3, 31, 32, 33, 63, 100, 257, 50001};

double slow_sum(const std::vector<double>& v) {
  long double sum = 0;
  for (double x : v) sum += x;
  return double(sum);
}

}  // namespace

TEST_CASE("sums of all elements, also with a large mean") {
  for (Dtype dtype : {Dtype::f32, Dtype::f64}) {
    const double tolerance = dtype == Dtype::f32 ? 1e-6 : 1e-13;
    for (int64_t n : kReducedSizes) {
      for (double mean : {0.0, 1e4}) {
        Tensor x = normal({n}, 1, dtype, mean);
        std::vector<double> v = x.to_vector(), squares = v;
        double magnitude = 0;
        for (size_t i = 0; i < v.size(); ++i) {
          squares[i] *= v[i];
          magnitude += std::abs(v[i]);
        }
        Tensor sum = steady([&] {
          Tensor y = Tensor::empty({1}, dtype);
          BRINE_CALL(y, sum_all, y, x);
          return y;
        });
        CHECK(std::abs(sum.item() - slow_sum(v)) <= tolerance * magnitude);
        Tensor square = steady([&] {
          Tensor y = Tensor::empty({1}, Dtype::f64);
          BRINE_CALL(y, square_sum, y, x);
          return y;
        });
        CHECK(square.item() == doctest::Approx(slow_sum(squares)).epsilon(1e-12));
      }
    }
  }
}

TEST_CASE("sum_rows adds the columns' sums") {
  for (Dtype dtype : {Dtype::f32, Dtype::f64}) {
    for (auto [R, C] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 1}, {3, 2}, {31, 33}, {100, 257}, {2000, 100}, {5, 20000}}) {
      Tensor x = normal({R, C}, 5, dtype, 3), start = normal({C}, 6, dtype);
      const auto v = x.to_vector();
      std::vector<double> expected = start.to_vector();
      for (size_t i = 0; i < v.size(); ++i) expected[i % size_t(C)] += v[i];
      Tensor y = steady([&] {
        Tensor sum = start.clone();
        BRINE_CALL(sum, sum_rows, sum, x);
        return sum;
      });
      CHECK(close(y.to_vector(), expected, 0, dtype == Dtype::f32 ? 2e-5 : 1e-11, "sum_rows"));
    }
  }
  Tensor y = normal({4}, 7), before = y.clone();
  BRINE_CALL(y, sum_rows, y, Tensor::empty({0, 4}));
  CHECK(same_bits(y, before));
}

TEST_CASE("count_nonfinite counts NaN and infinities of every float type") {
  for (Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16}) {
    for (int64_t n : kReducedSizes) {
      std::vector<double> v(size_t(n), 1.0);
      int64_t bad = 0;
      for (int64_t i = 0; i < n; i += 7, ++bad) {
        v[size_t(i)] = i % 3 ? std::nan("") : (i % 2 ? -1 : 1) * INFINITY;
      }
      Tensor x = Tensor::from(v, {n}).to(dtype), y = Tensor::empty({1}, Dtype::i64);
      BRINE_CALL(y, count_nonfinite, y, x);
      CHECK(y.item() == double(bad));
    }
  }
}
