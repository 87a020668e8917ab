// Handles, views, strides and their errors.
#include "tensor/tensor.h"

#include "tests/gradcheck.h"
#include "tests/refusals.h"

using namespace brine;
using namespace brine::test;

namespace {

Tensor count_up(const Shape& shape) {
  std::vector<float> v(size_t(shape.numel()));
  for (size_t i = 0; i < v.size(); ++i) v[i] = float(i);
  return Tensor::from(v, shape);
}

using Values = std::vector<double>;

}  // namespace

TEST_CASE("views share memory and have their own strides") {
  Tensor x = count_up({2, 3, 4});
  CHECK(x.strides() == Shape{12, 4, 1});
  CHECK(x.is_contiguous());
  CHECK(x.rows() == 6);
  Tensor t = x.transpose(0, -1);
  CHECK(t.shape() == Shape{4, 3, 2});
  CHECK(t.strides() == Shape{1, 4, 12});
  CHECK_FALSE(t.is_contiguous());
  CHECK(t.shares_memory(x));
  CHECK(t.slice(0, 1, 1).to_vector() == Values{1, 13, 5, 17, 9, 21});
  CHECK(x.select(1, 2).to_vector() == Values{8, 9, 10, 11, 20, 21, 22, 23});
  CHECK(x.select(-1, 0).shape() == Shape{2, 3});
  CHECK(x.slice(2, 1, 2).slice(0, 1, 1).to_vector() == Values{13, 14, 17, 18, 21, 22});
  CHECK(x.view({-1, 8}).shape() == Shape{3, 8});
  CHECK(x.view({24}).slice(0, 20, 4).view({2, 2}).to_vector() == Values{20, 21, 22, 23});
  CHECK(x.permute({1, 0, 2}).contiguous().strides() == Shape{8, 4, 1});
  x.view({24}).data<float>()[23] = -1;
  CHECK(t.to_vector().back() == -1);
}

TEST_CASE("contiguity ignores axes of one element") {
  Tensor x = count_up({4, 5});
  CHECK(x.slice(0, 2, 1).is_contiguous());
  CHECK_FALSE(x.slice(1, 2, 1).is_contiguous());
  CHECK(x.slice(1, 2, 1).slice(0, 0, 1).is_contiguous());
  CHECK(x.contiguous().shares_memory(x));
  CHECK_FALSE(x.clone().shares_memory(x));
  CHECK_FALSE(x.transpose(0, 1).contiguous().shares_memory(x));
}

TEST_CASE("as_strided reads any pattern inside the storage") {
  Tensor x = count_up({10});
  CHECK(x.as_strided({3, 3}, {3, 1}, 1).to_vector() == Values{1, 2, 3, 4, 5, 6, 7, 8, 9});
  CHECK(x.as_strided({2, 3}, {0, 4}).to_vector() == Values{0, 4, 8, 0, 4, 8});
  CHECK_REFUSES(x.as_strided({3, 3}, {3, 1}, 2), "exceeds the storage");
  CHECK_THROWS_AS(x.as_strided({2}, {-1}), Error);
  CHECK_THROWS_AS(x.as_strided({2}, {1, 1}), Error);
  CHECK(x.as_strided({0, 3}, {100, 1}).numel() == 0);
}

TEST_CASE("wrong uses are named") {
  Tensor x = count_up({2, 6});
  CHECK_THROWS_WITH_AS(x.view({5}), doctest::Contains("does not fit"), Error);
  CHECK_THROWS_WITH_AS(x.view({-1, -1}), doctest::Contains("two sizes of -1"), Error);
  CHECK_THROWS_WITH_AS(x.view({-1, 5}), doctest::Contains("does not fit"), Error);
  CHECK_THROWS_WITH_AS(x.transpose(0, 1).view({12}), doctest::Contains("not contiguous"), Error);
  CHECK_THROWS_WITH_AS(x.permute({0, 0}), doctest::Contains("not a permutation"), Error);
  CHECK_THROWS_AS(x.permute({0}), Error);
  CHECK_THROWS_WITH_AS(x.slice(1, 4, 3), doctest::Contains("outside axis"), Error);
  CHECK_THROWS_AS(x.slice(1, -1, 1), Error);
  CHECK_THROWS_AS(x.select(0, 2), Error);
  CHECK_THROWS_AS(x.dim(2), Error);
  CHECK_THROWS_WITH_AS(x.data<double>(), doctest::Contains("data<f64> of a f32"), Error);
  CHECK_THROWS_WITH_AS(x.item(), doctest::Contains("not have exactly one element"), Error);
  CHECK_THROWS_WITH_AS(Tensor::from(Values{1, 2}, {3}), doctest::Contains("do not fill"), Error);
}

TEST_CASE("types, uniqueness and versions") {
  Tensor x = count_up({3});
  CHECK(x.to(Dtype::f32).shares_memory(x));
  CHECK(x.to(Dtype::i64).data<int64_t>()[2] == 2);
  CHECK(x.is_unique());
  {
    Tensor view = x.view({3, 1});
    CHECK_FALSE(x.is_unique());
    view.bump_version();
  }
  CHECK(x.is_unique());
  CHECK(x.version() == 1);
  CHECK(Tensor::zeros({2, 2}).to_vector() == Values(4, 0.0));
  CHECK(Tensor::full({}, 3).item() == 3);
  CHECK_FALSE(Tensor().defined());
  CHECK(Tensor::empty({0, 4}).rows() == 0);
}
