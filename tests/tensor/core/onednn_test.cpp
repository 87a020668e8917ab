// Pieces of products by oneDNN against a sum in f64.
#include "tensor/cpu/core/onednn.h"

#include <cmath>

#include "tensor/kernels/dense.h"
#include "tests/gradcheck.h"

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

  // The largest error relative to the sum of the terms' sizes; infinite for a NaN and for a changed
  // element beyond a row's end.
  double error(const Tensor& y) const {
    const std::vector<double> x = a.to_vector(), w = b.to_vector(), old = c.to_vector(),
                              got = y.to_vector();
    double worst = 0;
    for (int64_t i = 0; i < g.M; ++i) {
      for (int64_t j = 0; j < g.ldc; ++j) {
        const size_t at = size_t(i * g.ldc + j);
        if (j >= g.N) {
          if (got[at] != old[at]) return INFINITY;
          continue;
        }
        double sum = g.beta == 0 ? 0 : g.beta * old[at], size = std::abs(sum);
        for (int64_t k = 0; k < g.K; ++k) {
          const double p = g.alpha * x[size_t(g.ta ? k * g.lda + i : i * g.lda + k)] *
                           w[size_t(g.tb ? j * g.ldb + k : k * g.ldb + j)];
          sum += p;
          size += std::abs(p);
        }
        const double e = std::abs(got[at] - sum) / (size + 1e-300);
        worst = std::isnan(e) ? INFINITY : std::max(worst, e);
      }
    }
    return worst;
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
        CHECK(one.error(y) < 2e-6);
        CHECK(test::same_bits(one.product(), y));
      }
    }
  }
}
