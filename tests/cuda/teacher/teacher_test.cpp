// The summary of a teacher on the device, as on the CPU.
#include "tensor/mask/teacher.h"
#include "autograd/ops.h"
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

TEST_CASE("cuda: the teacher's summary from q and k in 16 bits") {
  const Visibility visible{true, Tensor::from(std::vector<int64_t>{70, 35}, {2})};
  for (Dtype type : {Dtype::bf16, Dtype::f16}) {
    const Tensor q = normal({2, 2, 70, 24}, 2).to(type), k = normal({2, 2, 70, 24}, 3).to(type);
    compare(join("teacher ", type), 2e-5, [&](const On& on) {
      const TeacherSummary s = summarize_teacher({{}, on(q), on(k)}, 16, visible);
      return std::vector{s.tau, s.t_log_t, s.t_square};
    });
  }
}

TEST_CASE("cuda: the teacher's summary from a map and from q and k") {
  struct Case {
    int64_t B, H, T, d, K;
    std::vector<int64_t> lengths;
  };
  const std::vector<Case> cases = {
      {1, 1, 1, 1, 1, {}},           {2, 3, 7, 5, 4, {}},      {3, 2, 70, 16, 16, {70, 0, 33}},
      {2, 2, 130, 64, 3, {65, 130}}, {1, 2, 130, 70, 200, {}}, {1, 1, 65, 132, 65, {}},
      {2, 1, 9, 4, 5, {0, 0}},       {2, 1, 0, 4, 5, {}}};
  for (const Case& c : cases) {
    for (int mode = 0; mode < 4; ++mode) {
      const bool causal = mode % 2, map = mode / 2;
      Visibility visible{causal, lengths_of(c.lengths)};
      compare_both(join("teacher ", c.T, " ", c.d, causal, map), [&](const On& on, Dtype dtype) {
        TeacherAttention teacher;
        if (map) {
          // A few entries are 0, and a row's mass is not 1.
          const Tensor all = uniform({c.B, c.H, c.T, c.T}, 1, -0.1, 1, Dtype::f64);
          teacher.map = on(where(less(all, 0), 0, all).to(dtype));
        } else {
          teacher.q = on(normal({c.B, c.H, c.T, c.d}, 2, dtype));
          teacher.k = on(normal({c.B, c.H, c.T, c.d}, 3, dtype));
        }
        TeacherSummary s = summarize_teacher(teacher, c.K, visible);
        return std::vector{s.tau, s.t_log_t, s.t_square};
      });
    }
  }
}
