// Gates and the bidirectional average of the values: the device against the CPU.
#include "tensor/kernels/estimator.h"
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

namespace {

struct MixCase {
  int64_t B, H, T, d, K;
  std::vector<int64_t> lengths = {};
  bool causal = true;
  int64_t groups = 0;  // of heads that share values; 0: one for every head

  Shape values() const { return {B, groups ? groups : H, T, d}; }
  std::string name() const {
    return join("B", B, " H", H, " G", groups, " T", T, " d", d, " K", K);
  }
  Visibility visible(const On& on, bool on_device) const {
    if (lengths.empty()) return {causal, {}};
    Tensor row_lengths = Tensor::from(lengths, {B});
    return {causal, on_device ? on(row_lengths) : row_lengths};
  }
};

const std::vector<MixCase>& cases() {
  static const std::vector<MixCase> all = {
      {.B = 1, .H = 1, .T = 1, .d = 1, .K = 1},
      {.B = 2, .H = 3, .T = 7, .d = 5, .K = 4, .lengths = {7, 0}},
      {.B = 3, .H = 2, .T = 33, .d = 32, .K = 8, .lengths = {1, 33, 20}, .causal = false},
      {.B = 2, .H = 2, .T = 150, .d = 70, .K = 65, .lengths = {150, 65}},  // bands, wide rows
      {.B = 1, .H = 2, .T = 20, .d = 64, .K = 130},                        // K > T
      {.B = 2, .H = 2, .T = 64, .d = 3, .K = 7, .lengths = {128, 64}, .causal = false},
      {.B = 0, .H = 2, .T = 4, .d = 3, .K = 2},
      {.B = 2, .H = 2, .T = 0, .d = 3, .K = 2},
      {.B = 2, .H = 6, .T = 7, .d = 5, .K = 4, .lengths = {7, 3}, .causal = false, .groups = 3},
      {.B = 2, .H = 6, .T = 70, .d = 33, .K = 9, .lengths = {70, 0}, .groups = 2},
      {.B = 1, .H = 3, .T = 9, .d = 64, .K = 16, .groups = 1},
  };
  return all;
}

}  // namespace

TEST_CASE("cuda: mixed outputs and their gradients") {
  for (const MixCase& m : cases()) {
    for (bool on_device : {false, true}) {
      compare_both(m.name(), [&](const On& on, Dtype dtype) {
        const Shape shape{m.B, m.H, m.T, m.d};
        const Visibility visible = m.visible(on, on_device);
        Tensor c = on(normal(shape, 1, dtype)), average = on(normal(m.values(), 2, dtype));
        Tensor gates = on(normal({m.B, m.H, m.T, 2}, 3, dtype));
        Tensor dy = on(normal({m.B, m.T, m.H * m.d}, 4, dtype)), y = Tensor::like(dy);
        Tensor dc = Tensor::like(c), daverage = Tensor::like(average), dgates = Tensor::like(gates);
        BRINE_CALL(c, mix_outputs, y, c, average, gates, visible);
        BRINE_CALL(c, mix_outputs_backward, dc, daverage, dgates, dy, c, average, gates, visible);
        return std::vector{y, dc, daverage, dgates};
      });
    }
  }
}

TEST_CASE("cuda: the average of the values and its gradients") {
  for (const MixCase& m : cases()) {
    for (int wanted = 1; wanted < 4; ++wanted) {
      compare_both(m.name(), [&](const On& on, Dtype dtype) {
        const Shape shape{m.B, m.H, m.T, m.d};
        const Visibility visible = m.visible(on, wanted == 3);
        Tensor estimate = on(uniform({m.B, m.H, m.T, m.K}, 1, 0.01, 1).to(dtype));
        Tensor v = on(normal(m.values(), 2, dtype)), dy = on(normal(shape, 3, dtype));
        Tensor y = Tensor::like(dy), destimate, dv;
        if (wanted & 1) destimate = Tensor::like(estimate);
        if (wanted & 2) dv = Tensor::like(v);
        BRINE_CALL(v, estimate_average, y, estimate, v, visible);
        BRINE_CALL(v, estimate_average_backward, destimate, dv, dy, estimate, v, y, visible);
        return std::vector{y, destimate, dv};
      });
    }
  }
}
