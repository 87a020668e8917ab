// What a printed tensor looks like, and that it never takes more than a screen.
#include <algorithm>
#include <limits>
#include <sstream>

#include "autograd/node.h"
#include "tests/gradcheck.h"

namespace brine::test {
namespace {

std::string text_of(const Tensor& x) {
  std::ostringstream out;
  out << x;
  return out.str();
}

Tensor counting(const Shape& shape, Dtype dtype = Dtype::f32) {
  std::vector<double> v(size_t(shape.numel()));
  for (size_t i = 0; i < v.size(); ++i) v[i] = double(i);
  return Tensor::from(v, shape).to(dtype);
}

}  // namespace

TEST_CASE("print: shape, type, device and aligned values") {
  CHECK(text_of(Tensor()) == "Tensor (undefined)");
  CHECK(text_of(counting({2, 3})) == "Tensor [2, 3] f32 cpu\n[[0, 1, 2],\n [3, 4, 5]]");
  CHECK(text_of(Tensor::from(std::vector<double>{-1.5, 1e-7, 1e20}, {3})) ==
        "Tensor [3] f64 cpu\n[ -1.5, 1e-07, 1e+20]");
  CHECK(text_of(counting({2, 1, 2}, Dtype::i64)) ==
        "Tensor [2, 1, 2] i64 cpu\n[[[0, 1]],\n [[2, 3]]]");
  CHECK(text_of(Tensor::full({}, 2.5)) == "Tensor [] f32 cpu\n2.5");
  CHECK(text_of(Tensor::empty({3, 0})) == "Tensor [3, 0] f32 cpu\n[]");
  const float inf = std::numeric_limits<float>::infinity();
  CHECK(text_of(Tensor::from(std::vector<float>{inf, -inf, NAN}, {3}).to(Dtype::bf16)) ==
        "Tensor [3] bf16 cpu\n[ inf, -inf,  nan]");
}

TEST_CASE("print: integers keep all their digits") {
  const std::vector<int64_t> large = {(int64_t{1} << 62) + 1, -5};
  CHECK(text_of(Tensor::from(large, {2})) ==
        "Tensor [2] i64 cpu\n[4611686018427387905,                  -5]");
}

TEST_CASE("print: views show their own values, a tensor on the tape its value") {
  Tensor x = counting({3, 4});
  CHECK(text_of(x.transpose(0, 1).slice(0, 1, 2)) ==
        "Tensor [2, 3] f32 cpu\n[[ 1,  5,  9],\n [ 2,  6, 10]]");
  CHECK(text_of(require_grad(counting({2}))) == "Tensor [2] f32 cpu\n[0, 1]");
}

TEST_CASE("print: the middle of long axes is left out") {
  CHECK(text_of(counting({1000})) ==
        "Tensor [1000] f32 cpu\n[  0,   1,   2,   3, ..., 996, 997, 998, 999]");
  const std::string square = text_of(counting({500, 2}, Dtype::i32));
  CHECK(square.find("[[  0,   1],\n [  2,   3],") != std::string::npos);
  CHECK(square.find("\n ...\n") != std::string::npos);
  CHECK(square.ends_with(" [998, 999]]"));
}

TEST_CASE("print: no tensor takes more than 24 lines, of at most eight values each") {
  const double widest = -1.2345e-300;
  const int64_t long_number = std::numeric_limits<int64_t>::min();
  for (const Shape& shape :
       {Shape{100000}, Shape{24}, Shape{23, 7}, Shape{40, 40}, Shape{2, 12, 2}, Shape{9, 9, 9},
        Shape{1, 1, 1, 1, 1, 500}, Shape{3, 3, 3, 3, 3, 3}, Shape{7, 7, 7, 7, 7, 7}}) {
    CAPTURE(shape);
    Tensor whole = Tensor::empty(shape, Dtype::i64);
    std::fill_n(whole.data<int64_t>(), whole.numel(), long_number);
    for (const Tensor& x : {Tensor::full(shape, widest, Dtype::f64), whole, counting(shape)}) {
      std::istringstream text(text_of(x));
      size_t lines = 0, widest_line = 0;
      for (std::string line; std::getline(text, line); ++lines) {
        widest_line = std::max(widest_line, line.size());
      }
      CHECK(lines >= 2);
      CHECK(lines <= 24);
      CHECK(widest_line <= 200);
    }
  }
}

}  // namespace brine::test
