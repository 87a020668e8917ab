// Linear layers of few rows by weights in 16 bits, and bits that depend only on the row; values are
// in tests/ops/kernel_table.h.
#include "tensor/kernels/dense.h"
#include "tests/gradcheck.h"

using namespace brine;
using namespace brine::test;

TEST_CASE("thin_linear: weights of 16 bits are the same values in f32, whatever the other rows") {
  for (Dtype stored : {Dtype::bf16, Dtype::f16, Dtype::f32, Dtype::f64}) {
    const Dtype type = stored == Dtype::f64 ? Dtype::f64 : Dtype::f32;
    for (auto [O, I] : {std::pair<int64_t, int64_t>{1, 1}, {7, 19}, {33, 64}, {50, 257}}) {
      const Tensor all = normal({O, 2 * I}, 1).to(stored), w = all.slice(1, I, I);
      const Tensor b = normal({O}, 2, type), x = normal({7, I}, 3, type);
      Tensor y = Tensor::empty({7, O}, type), wide = Tensor::empty({7, O}, Dtype::f64);
      BRINE_CALL(y, thin_linear, y, x, w, b);
      BRINE_CALL(wide, thin_linear, wide, x.to(Dtype::f64), w.to(Dtype::f64), b.to(Dtype::f64));
      CHECK(close_to_scale(y.to(Dtype::f64), wide, 1e-6));
      for (int64_t r = 0; r < 7; ++r) {
        Tensor one = Tensor::empty({1, O}, type);
        BRINE_CALL(y, thin_linear, one, x.slice(0, r, 1), w, b);
        CHECK(same_bits(one, y.slice(0, r, 1)));
      }
    }
  }
}
