// The scores of mean keys on the device, as on the CPU.
#include "autograd/ops_estimator.h"
#include "tensor/kernels/estimator.h"
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

namespace {

struct Sizes {
  int64_t B, H, G, T, d, K, step;
  std::vector<int64_t> lengths;  // none: no padding
  int64_t units = 0;

  ColumnGrid grid() const { return {step, units}; }
};

void compare_pooled(const Sizes& s, bool causal) {
  const Tensor lengths = s.lengths.empty() ? Tensor() : Tensor::from(s.lengths, Shape{s.B});
  const Shape queries{s.B, s.H, s.T, s.d}, keys{s.B, s.G, s.T, s.d};
  const Shape scores{s.B, s.H, (s.T + s.step - 1) / s.step, s.K};
  compare_both(join("pooled_prior ", queries, " ", scores, causal), [&](const On& on, Dtype dtype) {
    Tensor q = on(normal(queries, 1, dtype)), k = on(normal(keys, 2, dtype));
    Tensor dy = on(normal(scores, 3, dtype)), x = on(normal(scores, 4, dtype));
    Tensor y = Tensor::like(x), dq = Tensor::like(q), dk = Tensor::like(k);
    Tensor gain = on(normal({s.H}, 5, dtype)), dgain = on(normal({s.H}, 6, dtype));
    BRINE_CALL(y, pooled_prior, y, x, gain, q, k, Visibility{causal, on(lengths)}, s.grid());
    BRINE_CALL(y, pooled_prior_backward, dgain, dq, dk, dy, gain, q, k, Visibility{causal, lengths},
               s.grid());
    return std::vector{y, dgain, dq, dk};
  });
}

}  // namespace

TEST_CASE("cuda: scores of mean keys and their gradients") {
  for (const Sizes& s :
       {Sizes{1, 1, 1, 1, 1, 1, 1, {}}, Sizes{2, 2, 2, 7, 5, 3, 1, {0, 6}},
        Sizes{2, 4, 2, 130, 20, 16, 1, {130, 71}}, Sizes{1, 3, 1, 70, 8, 40, 3, {}},
        Sizes{1, 1, 1, 0, 4, 3, 1, {}}, Sizes{2, 2, 1, 260, 5, 9, 1, {260, 201}, 2}}) {
    for (bool causal : {false, true}) compare_pooled(s, causal);
  }
}

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
