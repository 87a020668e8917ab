// The steps of the linear attention and of the prior on the device, as on the CPU.
#include "tensor/kernels/kernels_decoding.h"

#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

namespace {

Tensor numbers(const std::vector<int64_t>& values) {
  return Tensor::from(values, Shape{int64_t(values.size())});
}

}  // namespace

TEST_CASE("cuda: linear_attention_step") {
  struct Size {
    int64_t m, columns, d;
  };
  for (Size s : {Size{1, 1, 1}, Size{8, 3, 5}, Size{33, 40, 64}, Size{300, 64, 64}}) {
    for (bool moved : {false, true}) {
      compare_both(join("linear_attention_step ", s.m, " ", s.d), [&](const On& on, Dtype dtype) {
        const int64_t B = 3, H = 2, e = s.columns + s.d;
        Tensor state = on(normal({B, H, s.m, e}, 1, dtype));
        Tensor sums = on(uniform({B, H, s.m}, 2, 0.5, 3, Dtype::f64));
        Tensor q = on(uniform({B, H, 1, s.m}, 3, 0.1, 1, dtype));
        Tensor k = on(uniform({B, H, 1, s.m}, 4, 0.1, 1, dtype));
        Tensor identity = on(normal({11, s.columns}, 5, dtype));
        Tensor v = on(normal({B, H, 1, s.d}, 6, dtype)), at = numbers({10, 0, 4});
        Tensor y = Tensor::empty({B, H, 1, e}, dtype, q.device());
        BRINE_CALL(y, linear_attention_step, y, state, sums, q, k, identity, v, moved ? on(at) : at,
                   1e-3);
        return std::vector{y, state, sums};
      });
    }
  }
}

TEST_CASE("cuda: performer_prior_step from nothing, by one key and by many") {
  struct Size {
    int64_t m, K;
  };
  for (Size s : {Size{1, 1}, Size{5, 7}, Size{40, 33}, Size{300, 16}}) {
    for (bool moved : {false, true}) {
      compare_both(join("performer_prior_step ", s.m, " ", s.K), [&](const On& on, Dtype dtype) {
        const int64_t B = 4, H = 2, S = 90, padded = border_columns(s.m);
        Tensor keys = on(uniform({B, H, S, s.m}, 1, 0.1, 1, dtype));
        Tensor borders = on(normal({B, H, s.K + 1, padded}, 2, Dtype::f64));
        Tensor gain = on(normal({H}, 3, dtype)), now = numbers({0, 0, 0, 0});
        Tensor at = moved ? on(now) : now;
        std::vector<Tensor> out;
        // The third sequence waits for its first key, and begins again once.
        for (std::vector<int64_t> width : {std::vector<int64_t>{1, 50, 0, 3},
                                           {2, 51, 1, 30},
                                           {3, 51, 2, 89},
                                           {90, 52, 40, 90}}) {
          const uint64_t seed = 10 + out.size();
          Tensor q = on(uniform({B, H, 1, s.m}, seed, 0.1, 1, dtype));
          Tensor scores = on(normal({B, H, 1, s.K}, seed + 100, dtype));
          Tensor y = Tensor::like(scores), then = numbers(width);
          BRINE_CALL(y, performer_prior_step, y, borders, at, scores, gain, q, keys,
                     moved ? on(then) : then);
          out.push_back(y);
          out.push_back(on(borders.to(kCpu)));
          out.push_back(on(at.to(kCpu)));
        }
        return out;
      });
    }
  }
}
