// Linear layers of few rows against sums in f64.
#include "tensor/kernels/dense.h"
#include "tests/gradcheck.h"

using namespace brine;
using brine::test::close_to_scale;
using brine::test::normal;
using brine::test::same_bits;

TEST_CASE(
    "thin_linear: any number of rows and odd sizes, strided weights, bits that depend only on the "
    "row") {
  for (Dtype type : {Dtype::f32, Dtype::f64}) {
    for (auto [O, I] : {std::pair<int64_t, int64_t>{1, 1}, {3, 5}, {33, 63}, {130, 257}}) {
      const Tensor all = normal({O, 2 * I}, 1, type), w = all.slice(1, I / 2, I);
      const Tensor b = normal({O}, 2, type), x = normal({7, I}, 3, type);
      std::vector<double> wanted;
      const std::vector<double> xs = x.to_vector(), ws = w.to_vector(), bs = b.to_vector();
      for (int64_t r = 0; r < 7; ++r) {
        for (int64_t o = 0; o < O; ++o) {
          double sum = bs[size_t(o)];
          for (int64_t i = 0; i < I; ++i) sum += xs[size_t(r * I + i)] * ws[size_t(o * I + i)];
          wanted.push_back(sum);
        }
      }
      Tensor y = Tensor::empty({7, O}, type), plain = Tensor::like(y);
      BRINE_CALL(y, thin_linear, y, x, w, b);
      CHECK(close_to_scale(y.to(Dtype::f64), Tensor::from(wanted, {7, O}),
                           type == Dtype::f64 ? 1e-13 : 1e-5));
      BRINE_CALL(y, thin_linear, plain, x, w, Tensor());
      CHECK_FALSE(same_bits(y, plain));
      for (int64_t r = 0; r < 7; ++r) {
        Tensor one = Tensor::empty({1, O}, type);
        BRINE_CALL(y, thin_linear, one, x.slice(0, r, 1), w, b);
        CHECK(same_bits(one, y.slice(0, r, 1)));
      }
    }
  }
}

TEST_CASE("thin_linear: weights of 16 bits are the same values in f32, whatever the other rows") {
  for (Dtype stored : {Dtype::bf16, Dtype::f16}) {
    for (auto [O, I] : {std::pair<int64_t, int64_t>{1, 1}, {7, 19}, {33, 64}, {50, 257}}) {
      const Tensor all = normal({O, 2 * I}, 1).to(stored), w = all.slice(1, I, I);
      const Tensor b = normal({O}, 2), x = normal({7, I}, 3);
      Tensor y = Tensor::empty({7, O}, Dtype::f32), wide = Tensor::empty({7, O}, Dtype::f64);
      BRINE_CALL(y, thin_linear, y, x, w, b);
      BRINE_CALL(wide, thin_linear, wide, x.to(Dtype::f64), w.to(Dtype::f64), b.to(Dtype::f64));
      CHECK(close_to_scale(y.to(Dtype::f64), wide, 1e-6));
      for (int64_t r = 0; r < 7; ++r) {
        Tensor one = Tensor::empty({1, O}, Dtype::f32);
        BRINE_CALL(y, thin_linear, one, x.slice(0, r, 1), w, b);
        CHECK(same_bits(one, y.slice(0, r, 1)));
      }
    }
  }
}
