// approx_loss and its gradient on the device, as on the CPU.
#include "tensor/kernels/teacher.h"
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

TEST_CASE("cuda: approx_loss and its gradient") {
  struct Case {
    int64_t B, H, T, K;
    std::vector<int64_t> lengths;
  };
  const std::vector<Case> cases = {
      {1, 1, 1, 1, {}},        {2, 3, 7, 4, {}},    {3, 2, 70, 16, {70, 0, 33}},
      {2, 2, 41, 64, {5, 41}}, {1, 2, 130, 33, {}}, {2, 1, 9, 5, {0, 0}},
      {2, 1, 0, 5, {}},        {1040, 1, 1, 2, {}}};  // sums of many blocks
  for (const Case& c : cases) {
    for (bool causal : {true, false}) {
      Visibility visible{causal, c.lengths.empty() ? Tensor() : Tensor::from(c.lengths, {c.B})};
      compare_both(join("approx_loss ", c.T, " ", c.K, causal), [&](const On& on, Dtype dtype) {
        TeacherAttention teacher{uniform({c.B, c.H, c.T, c.T}, 1, 0, 0.1, dtype), {}, {}};
        TeacherSummary s = summarize_teacher(teacher, c.K, visible);
        s = {on(s.tau), on(s.t_log_t), on(s.t_square)};
        Tensor scores = on(normal({c.B, c.H, c.T, c.K}, 2, dtype)), dy = on(normal({2}, 3, dtype));
        Tensor y = Tensor::like(dy), dscores = Tensor::like(scores);
        BRINE_CALL(scores, approx_loss, y, scores, s, visible);
        BRINE_CALL(scores, approx_loss_backward, dscores, dy, scores, s, visible);
        return std::vector{y, dscores};
      });
    }
  }
}
