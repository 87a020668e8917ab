// prob_loss and its gradients on the device, as on the CPU.
#include "tensor/kernels/teacher.h"
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

namespace {

struct LossCase {
  int64_t B, H, T, d, teacher_d;
  std::vector<int64_t> lengths;
};

// Rows of positive numbers, some of them 0, whose sum is not 1.
Tensor map_of(const LossCase& c, Dtype dtype) {
  std::vector<double> map = uniform({c.B, c.H, c.T, c.T}, 1, -0.1, 1, Dtype::f64).to_vector();
  for (double& x : map) x = x < 0 ? 0 : x * 3 / double(c.T);
  return Tensor::from(map, {c.B, c.H, c.T, c.T}).to(dtype);
}

}  // namespace

TEST_CASE("cuda: prob_loss of q and k in 16 bits, of a teacher in any type") {
  if (!has_device()) return;
  const std::vector<LossCase> cases = {{2, 3, 7, 5, 3, {}},
                                       {3, 2, 70, 16, 24, {70, 0, 33}},
                                       {2, 1, 130, 64, 64, {65, 130}},
                                       {1, 2, 130, 72, 132, {}}};
  for (const LossCase& c : cases) {
    for (int mode = 0; mode < 12; ++mode) {
      if (c.T > 100 && mode % 5 > 1) continue;  // a few of them will do
      const bool causal = mode % 2;
      const Dtype type = mode / 2 % 2 ? Dtype::f16 : Dtype::bf16;
      const Dtype other = mode < 4 ? Dtype::bf16 : mode < 8 ? Dtype::f16 : Dtype::f32;
      const bool map = mode >= 10;
      Visibility visible{causal, c.lengths.empty() ? Tensor() : Tensor::from(c.lengths, {c.B})};
      INFO("T ", c.T, ", d ", c.d, causal ? ", causal, " : ", ", type, ", teacher ", other);
      auto run = [&](Device device) {
        const On on{device};
        const Shape rows{c.B, c.H, c.T}, shape{c.B, c.H, c.T, c.d};
        const Shape theirs{c.B, c.H, c.T, c.teacher_d};
        TeacherAttention teacher{
            {}, on(normal(theirs, 2).to(other)), on(normal(theirs, 3).to(other))};
        if (map) teacher = {.map = on(map_of(c, Dtype::f32)), .q = {}, .k = {}};
        Tensor q = on(normal(shape, 4).to(type)), k = on(normal(shape, 5).to(type));
        Tensor dy = on(normal({2}, 6)), y = Tensor::like(dy);
        Tensor lse = Tensor::empty(rows, Dtype::f32, device), their_lse = Tensor::like(lse);
        Tensor dq = Tensor::empty(shape, Dtype::f32, device), dk = Tensor::like(dq);
        const double scale = 1 / std::sqrt(double(c.d));
        BRINE_CALL(q, prob_loss, y, lse, their_lse, q, k, teacher, visible, scale);
        BRINE_CALL(q, prob_loss_backward, dq, dk, dy, q, k, teacher, lse, their_lse, visible,
                   scale);
        return std::vector{y, lse, their_lse, dq, dk};
      };
      const std::vector<Tensor> wanted = run(kCpu), got = run(kCuda);
      const std::vector<Tensor> again = mode < 2 ? run(kCuda) : got;
      for (size_t i = 0; i < wanted.size(); ++i) {
        INFO("output ", i);
        check_close("16 bits", wanted[i], got[i].to(kCpu), 2e-5);
        CHECK(same_bits(got[i].to(kCpu), again[i].to(kCpu)));
      }
    }
  }
}

TEST_CASE("cuda: prob_loss of a student near its teacher, and padding that contains NaN") {
  const int64_t B = 1, H = 1, T = 150, d = 64;
  const double scale = 1 / std::sqrt(double(d));
  for (bool causal : {true, false}) {
    for (Dtype given : {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16}) {
      const Dtype dtype = sum_type(given);
      Visibility visible{causal, Tensor::from(std::vector<int64_t>{100}, {1})};
      compare(join("prob_loss near ", given), dtype == Dtype::f32 ? 2e-3 : 1e-9, [&](const On& on) {
        const Shape shape{B, H, T, d};
        Tensor q = normal(shape, 1, dtype), k = normal(shape, 2, dtype);
        Tensor their_q = normal(shape, 1, dtype, 0, 1.02), their_k = k.clone();
        for (Tensor x : {q, k, their_q, their_k}) {
          dispatch_float(dtype, [&]<class R>() {
            std::fill(x.data<R>() + 100 * d, x.data<R>() + T * d, R(NAN));
          });
        }
        q = on(q.to(given)), k = on(k.to(given));
        TeacherAttention teacher{{}, on(their_q.to(given)), on(their_k.to(given))};
        Tensor y = on(normal({2}, 3, dtype)), dy = on(normal({2}, 4, dtype));
        Tensor lse = Tensor::empty({B, H, T}, dtype, q.device()), their_lse = Tensor::like(lse);
        Tensor dq = Tensor::empty(shape, dtype, q.device()), dk = Tensor::like(dq);
        BRINE_CALL(q, prob_loss, y, lse, their_lse, q, k, teacher, visible, scale);
        BRINE_CALL(q, prob_loss_backward, dq, dk, dy, q, k, teacher, lse, their_lse, visible,
                   scale);
        return std::vector{y.slice(0, 0, 1), y.slice(0, 1, 1), lse, their_lse, dq, dk};
      });
    }
  }
}
