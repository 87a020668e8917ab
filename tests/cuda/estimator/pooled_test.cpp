// The scores of mean keys of one row on the device, as on the CPU; whole passes are in
// tests/autograd.
#include "autograd/ops_estimator.h"
#include "tensor/kernels/estimator.h"
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

TEST_CASE("cuda: pooled_scores_step from nothing, by one key and by many") {
  for (int64_t K : {1, 7, 33}) {
    compare_both(join("pooled_scores_step ", K), [&](const On& on, Dtype dtype) {
      const int64_t B = 3, H = 4, G = 2, S = 90, d = 12;
      Tensor keys = on(normal({B, G, S, d}, 1).to(stored(dtype, K == 33)));
      Tensor borders = on(normal({B, G, K + 1, border_columns(d)}, 2, Dtype::f64));
      Tensor at = Tensor::zeros({B}, Dtype::i64);
      std::vector<Tensor> out;
      for (std::vector<int64_t> width :
           {std::vector<int64_t>{1, 50, 0}, {2, 51, 1}, {3, 51, 2}, {90, 52, 40}}) {
        Tensor q = on(normal({B, H, 1, d}, 10 + out.size(), dtype));
        Tensor y = Tensor::empty({B, H, 1, K}, dtype, q.device());
        BRINE_CALL(y, pooled_scores_step, y, borders, at, q, keys, Tensor::from(width, Shape{B}),
                   K == 7 ? 2 : 0);
        out.push_back(y);
        out.push_back(on(borders.to(kCpu)));
        out.push_back(on(at.to(kCpu)));
      }
      return out;
    });
  }
}
