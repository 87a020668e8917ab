// Pieces of products by oneDNN against a sum in f64.
#include "tensor/cpu/core/onednn.h"

#include <cmath>

#include "tests/ops/kernel_table.h"

using namespace brine;
using brine::test::normal;
using onednn::Gemm;

namespace {

// Rows of the three matrices are 3, 5 and 7 elements longer than they need to be.
struct ProductCase {
  Gemm g;
  Tensor a, b, c;  // c: the earlier one

  ProductCase(int64_t M, int64_t N, int64_t K, bool ta, bool tb, float alpha, float beta,
              Dtype type)
      : g{M, N, K, ta, tb, (ta ? M : K) + 3, (tb ? K : N) + 5, N + 7, alpha, beta},
        a(normal({ta ? K : M, g.lda}, 1, type)),
        b(normal({tb ? N : K, g.ldb}, 2, type)),
        c(normal({M, g.ldc}, 3)) {
    if (beta == 0) cpu::copy(c.slice(1, 0, N), Tensor::full({M, N}, std::nan("")));
  }

  Tensor product() const {
    Tensor y = c.clone();
    if (a.dtype() == Dtype::f32) {
      onednn::gemm(g, a.data<float>(), b.data<float>(), y.data<float>());
    } else {
      onednn::gemm(g, a.data<bf16>(), b.data<bf16>(), y.data<float>());
    }
    return y;
  }

  // Within the bounds of rounding, and nothing beyond a row's end was written.
  bool is_near(const Tensor& y) const {
    const test::table::Matmul m{.ta = g.ta, .tb = g.tb, .alpha = g.alpha, .beta = g.beta};
    const Tensor left = a.slice(1, 0, g.lda - 3), right = b.slice(1, 0, g.ldb - 5);
    return test::table::within(y.slice(1, 0, g.N),
                               test::table::product(c.slice(1, 0, g.N), left, right, m), 2e-6) &&
           test::same_bits(y.slice(1, g.N, 7), c.slice(1, g.N, 7));
  }
};

}  // namespace

TEST_CASE("oneDNN: pieces of odd sizes are the product, with the same bits again") {
  const struct {
    int64_t M, N, K;
  } sizes[] = {{1, 1, 1}, {1, 33, 100}, {63, 1, 31}, {33, 65, 257}, {100, 63, 3}, {129, 97, 191}};
  int turn = 0;
  for (Dtype type : {Dtype::f32, Dtype::bf16}) {
    if (type == Dtype::bf16 && !onednn::has_bf16_gemm()) {
      MESSAGE("skipped: the CPU has no products in bf16");
      continue;
    }
    for (const auto& [M, N, K] : sizes) {
      for (int way = 0; way < 4; ++way, ++turn) {
        const float alpha = turn % 3 ? 1.0F : 0.25F, beta = turn % 2 ? 0.0F : 1.0F;
        const ProductCase one(M, N, K, way & 1, way & 2, alpha, beta, type);
        INFO(join(M, " ", N, " ", K, way & 1 ? " T" : " N", way & 2 ? "T " : "N ", type));
        const Tensor y = one.product();
        CHECK(one.is_near(y));
        CHECK(test::same_bits(one.product(), y));
      }
    }
  }
}
