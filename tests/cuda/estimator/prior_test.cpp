// The Performer's prior on the device, as on the CPU.
#include "tensor/cuda/core/scratch.h"
#include "tensor/kernels/kernels_performer.h"
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

namespace {

struct Size {
  int64_t B, H, T, m, K, step;
  std::vector<int64_t> lengths;  // none: no padding

  Tensor visible() const { return lengths.empty() ? Tensor() : Tensor::from(lengths, Shape{B}); }
};

const std::vector<Size> kSizes{{1, 1, 1, 1, 1, 1, {}},         {2, 2, 7, 5, 3, 1, {0, 6}},
                               {1, 3, 40, 4, 64, 1, {}},       {2, 1, 130, 20, 16, 1, {130, 71}},
                               {2, 2, 65, 9, 12, 3, {64, 65}}, {1, 2, 200, 133, 37, 4, {}},
                               {2, 1, 64, 6, 700, 2, {3, 64}}, {1, 1, 70, 16, 4000, 7, {}},
                               {1, 1, 0, 4, 3, 1, {}}};

struct Scratch {
  int64_t before = cuda::scratch_limit();
  explicit Scratch(int64_t bytes) { cuda::scratch_limit() = bytes; }
  ~Scratch() { cuda::scratch_limit() = before; }
};

void compare_prior(const Size& s, bool causal) {
  const Shape features{s.B, s.H, s.T, s.m};
  const Shape scores{s.B, s.H, (s.T + s.step - 1) / s.step, s.K};
  compare_both(
      join("performer_prior ", features, " ", scores, causal), [&](const On& on, Dtype dtype) {
        Tensor q = on(uniform(features, 1, 0.1, 1, dtype));
        Tensor k = on(uniform(features, 2, 0.1, 1, dtype));
        Tensor x = on(normal(scores, 3, dtype)), dy = on(normal(scores, 4, dtype));
        Tensor gain = on(normal({s.H}, 5, dtype)), dgain = on(normal({s.H}, 6, dtype));
        Tensor y = Tensor::like(x), dq = Tensor::like(q), dk = Tensor::like(k);
        BRINE_CALL(y, performer_prior, y, x, gain, q, k, Visibility{causal, s.visible()}, s.step);
        BRINE_CALL(y, performer_prior_backward, dgain, dq, dk, dy, gain, q, k,
                   Visibility{causal, on(s.visible())}, s.step);
        return std::vector{y, dgain, dq, dk};
      });
}

}  // namespace

TEST_CASE("cuda: the Performer's prior and its gradients") {
  for (const Size& s : kSizes) {
    for (bool causal : {false, true}) compare_prior(s, causal);
  }
}

TEST_CASE("cuda: the Performer's prior in turns of heads, for want of memory") {
  const Size s{2, 3, 90, 6, 10, 1, {90, 41}};
  for (int64_t bytes : {int64_t(1), int64_t(2) * (91 * 6 + 2 * 6 + 900) * 8}) {
    const Scratch small(bytes);
    for (bool causal : {false, true}) compare_prior(s, causal);
  }
}
