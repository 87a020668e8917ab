// copy, accumulate and fill over every pair of types and many strides.
#include "tensor/kernels/dense.h"
#include "tests/gradcheck.h"

using namespace brine;
using namespace brine::test;

namespace {

const std::vector<Dtype> kTypes = {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16,
                                   Dtype::i32, Dtype::i64, Dtype::u8};

// Element `index` of a strided tensor, found the slow way.
double element(const Tensor& x, int64_t index) {
  Tensor at = x;
  Shape steps = contiguous_strides(x.shape());
  for (int i = 0; i < x.rank(); ++i) {
    at = at.slice(i, index / steps[i], 1);
    index %= steps[i];
  }
  return double(*at.data<float>());
}

std::vector<double> slow_elements(const Tensor& x) {
  std::vector<double> v;
  for (int64_t i = 0; i < x.numel(); ++i) v.push_back(element(x, i));
  return v;
}

}  // namespace

TEST_CASE("copy converts between all types") {
  for (int64_t n : {1, 3, 33, 257}) {
    std::vector<double> whole;
    for (int64_t i = 0; i < n; ++i) whole.push_back(double((i * 37) % 128));
    for (Dtype from : kTypes) {
      Tensor x = Tensor::from(whole, {n}).to(from);
      for (Dtype to : kTypes) {
        CHECK(x.to(to).to_vector() == whole);
        Tensor wide = Tensor::zeros({n, 3}, to), column = wide.slice(1, 1, 1).select(1, 0);
        BRINE_CALL(wide, copy, column, x);
        CHECK(column.to_vector() == whole);
        CHECK(wide.select(1, 0).to_vector() == std::vector<double>(size_t(n), 0.0));
      }
    }
  }
}

TEST_CASE("copy walks any permutation and any part") {
  Tensor x = normal({5, 18, 33, 3}, 1);
  for (const std::vector<int>& axes : std::vector<std::vector<int>>{{0, 1, 2, 3},
                                                                    {3, 2, 1, 0},
                                                                    {0, 2, 1, 3},
                                                                    {1, 0, 3, 2},
                                                                    {2, 3, 0, 1},
                                                                    {0, 1, 3, 2},
                                                                    {3, 0, 1, 2}}) {
    Tensor part = x.permute(axes).slice(0, 1, 2).slice(2, 0, 2);
    CHECK(part.clone().to_vector() == slow_elements(part));
    for (int threads : {1, 3}) {
      Threads set(threads);
      CHECK(x.permute(axes).clone().to_vector() == slow_elements(x.permute(axes)));
    }
    // A strided target, of another type.
    Tensor to = Tensor::zeros(x.shape(), Dtype::f64), view = to.permute(axes);
    BRINE_CALL(to, copy, view, x.permute(axes));
    CHECK(close(to.to_vector(), x.to_vector(), 0, 0));
  }
  Tensor row = normal({7}, 2);
  CHECK(row.as_strided({4, 7}, {0, 1}).clone().select(0, 3).to_vector() == row.to_vector());
  CHECK(row.as_strided({7, 4}, {1, 0}).clone().select(1, 3).to_vector() == row.to_vector());
  Tensor none = Tensor::empty({0, 3});
  CHECK(none.clone().numel() == 0);
}

TEST_CASE("large transpositions are exact") {
  for (auto [rows, columns] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 700}, {257, 100}, {16, 16}, {333, 17}}) {
    Tensor x = normal({rows, columns}, 3), y = x.transpose(0, 1).clone();
    CHECK(same_bits(y.transpose(0, 1).clone(), x));
    CHECK(y.to_vector() == slow_elements(x.transpose(0, 1)));
  }
}

TEST_CASE("halves round to nearest even, once") {
  auto through = [](double x, Dtype half) {
    return Tensor::from(std::vector<double>{x}, {1}).to(half).item();
  };
  CHECK(through(1 + 0x1p-8, Dtype::bf16) == 1);                     // tie to even
  CHECK(through(1 + 0x3p-8, Dtype::bf16) == 1 + 0x1p-6);            // tie to even, upwards
  CHECK(through(1 + 0x1p-8 + 0x1p-40, Dtype::bf16) == 1 + 0x1p-7);  // would be 1 if rounded twice
  CHECK(through(-(1 + 0x1p-8 + 0x1p-40), Dtype::bf16) == -1 - 0x1p-7);
  CHECK(through(1 + 0x3p-8 - 0x1p-40, Dtype::bf16) == 1 + 0x1p-7);
  CHECK(through(1 + 0x1p-11, Dtype::f16) == 1);
  CHECK(through(1 + 0x1p-11 + 0x1p-40, Dtype::f16) == 1 + 0x1p-10);
  CHECK(through(65504, Dtype::f16) == 65504);
  CHECK(std::isinf(through(1e6, Dtype::f16)));
  CHECK(std::isnan(through(std::nan(""), Dtype::bf16)));
  CHECK(std::isnan(through(std::nan(""), Dtype::f16)));
}

TEST_CASE("accumulate adds through strides") {
  for (Dtype dtype : {Dtype::f32, Dtype::f64}) {
    Tensor y = normal({4, 33, 5}, 4, dtype), x = normal({33, 4, 2}, 5, dtype), before = y.clone();
    Tensor part = y.slice(2, 1, 2).permute({1, 0, 2});
    BRINE_CALL(y, accumulate, part, x);
    const auto after = y.to_vector(), old = before.to_vector(), add = x.to_vector();
    for (size_t i = 0; i < after.size(); ++i) {
      const size_t a = i / 165, b = i % 165 / 5, c = i % 5;
      const double more = c == 1 || c == 2 ? add[(b * 4 + a) * 2 + c - 1] : 0.0;
      CHECK(after[i] == doctest::Approx(old[i] + more).epsilon(1e-6));
    }
  }
}

TEST_CASE("fill writes its part only") {
  for (Dtype dtype : kTypes) {
    Tensor x = Tensor::zeros({5, 40}, dtype), part = x.slice(1, 3, 30).slice(0, 1, 2);
    BRINE_CALL(x, fill, part, 7.0);
    const auto v = x.to_vector();
    for (size_t i = 0; i < v.size(); ++i) {
      const bool inside = i / 40 >= 1 && i / 40 < 3 && i % 40 >= 3 && i % 40 < 33;
      CHECK(v[i] == (inside ? 7 : 0));
    }
  }
  CHECK(Tensor::full({3, 3}, -2.5).to_vector() == std::vector<double>(9, -2.5));
}
