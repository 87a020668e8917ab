// Upsampling on the device, as on the CPU.
#include "tensor/kernels/conv.h"
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

TEST_CASE("cuda: upsampling and its gradient") {
  struct Case {
    int64_t B, R, W, C, tokens, columns, stride, before, after;
    std::vector<int64_t> lengths;
  };
  const std::vector<Case> cases = {
      {2, 4, 3, 5, 4, 3, 1, 0, 0, {}},
      {2, 4, 3, 5, 7, 6, 2, 0, 0, {}},
      {2, 4, 3, 5, 10, 8, 3, 2, 1, {}},
      {2, 4, 7, 5, 4, 5, 1, 0, 0, {}},
      {4, 4, 8, 1, 8, 32, 2, 0, 0, {0, 8, 5, 99}},
      {3, 33, 4, 12, 129, 9, 4, 1, 0, {129, 0, 66}},
      {1, 2, 30, 12, 40, 100, 20, 1, 1, {38}},  // rows of 1,200 numbers
      {0, 4, 3, 5, 4, 3, 1, 0, 0, {}}};
  for (const Case& c : cases) {
    for (bool on_device : {false, true}) {
      compare_both(join("upsample ", c.tokens, " ", c.columns), [&](const On& on, Dtype dtype) {
        Upsampling conf;
        conf.tokens = c.tokens;
        conf.columns = c.columns;
        conf.stride = c.stride;
        conf.halo_before = c.before;
        conf.halo_after = c.after;
        if (!c.lengths.empty()) conf.lengths = Tensor::from(c.lengths, {c.B});
        if (on_device) conf.lengths = on(conf.lengths);
        Tensor x = on(normal({c.B, c.R, c.W, c.C}, 1, dtype)), dx = Tensor::like(x);
        Tensor y = Tensor::empty(
            {c.B, conf.halo_before + conf.tokens + conf.halo_after, conf.columns, c.C}, dtype,
            x.device());
        Tensor dy = on(normal(y.shape(), 2, dtype));
        BRINE_CALL(x, upsample, y, x, conf);
        BRINE_CALL(x, upsample_backward, dx, dy, conf);
        return std::vector{y, dx};
      });
    }
  }
}
