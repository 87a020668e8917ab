// Losses over the vocabulary at their limits; values are in tests/ops/.
#include "tensor/kernels/dense.h"
#include "tests/gradcheck.h"

using namespace brine;
using namespace brine::test;

namespace {

struct Kl {
  Tensor loss, lse, unlisted;
};

Kl kl(const Tensor& logits, const Tensor& values, const Tensor& ids, const Tensor& teacher_lse) {
  Tensor loss = Tensor::empty({logits.dim(0)}, logits.dtype());
  Kl k{loss, Tensor::like(loss), Tensor::like(loss)};
  BRINE_CALL(logits, kl_logits, k.loss, k.lse, k.unlisted, logits, values, ids, teacher_lse);
  return k;
}

Tensor row_lse(const Tensor& x) {
  Tensor y = Tensor::empty({x.dim(0)}, x.dtype());
  BRINE_CALL(x, log_sum_exp, y, x);
  return y;
}

}  // namespace

TEST_CASE("log_sum_exp of hidden values and of NaN") {
  Tensor hidden = Tensor::full({1, 50}, -INFINITY);
  hidden.data<float>()[49] = 2;
  CHECK(row_lse(hidden).item() == doctest::Approx(2));
  hidden.data<float>()[3] = NAN;
  CHECK(std::isnan(row_lse(hidden).item()));
}

TEST_CASE("kl_logits of equal logits is 0; a token that the teacher excludes costs nothing") {
  for (int64_t V : {2, 33, 5000}) {
    const Tensor x = normal({3, V}, 6, Dtype::f32, -4, 3);
    CHECK(largest(kl(x, x, {}, row_lse(x)).loss.to_vector()) < 1e-5);
  }
  Tensor teacher = Tensor::from(std::vector<float>{0, -INFINITY, 0}, {1, 3});
  Tensor student = Tensor::from(std::vector<float>{0, 0, 0}, {1, 3});
  CHECK(kl(student, teacher, {}, row_lse(teacher)).loss.item() ==
        doctest::Approx(std::log(3.0) - std::log(2.0)));
}

TEST_CASE("kl_logits is exact where the student is sure of the listed ids") {
  // The student leaves exp(-60) off the ids: 1 - q would be 0 in any precision.
  Tensor student = Tensor::full({1, 100}, -60),
         values = Tensor::from(std::vector<float>{0}, {1, 1});
  student.data<float>()[7] = 0;
  Tensor id = Tensor::from(std::vector<int32_t>{7}, {1, 1});
  Tensor teacher_lse = Tensor::from(std::vector<float>{0.1f}, {1});
  const Kl k = kl(student, values, id, teacher_lse);
  const double p = std::exp(-0.1f), rest = 1 - p;
  const double off = std::log(99.0) - 60;
  CHECK(k.loss.item() ==
        doctest::Approx(p * std::log(p) + rest * (std::log(rest) - off)).epsilon(1e-5));
  Tensor dx = Tensor::like(student), g = Tensor::full({1}, 1);
  BRINE_CALL(dx, kl_logits_backward, dx, g, student, k.lse, k.unlisted, values, id, teacher_lse);
  const auto d = dx.to_vector();
  CHECK(d[7] == doctest::Approx(1 - p).epsilon(1e-5));
  CHECK(d[8] == doctest::Approx(-rest / 99).epsilon(1e-5));
}

TEST_CASE("a row whose gradient is zero is left out, whatever it contains") {
  Tensor student = normal({2, 40}, 9), teacher = normal({2, 40}, 10), g = Tensor::zeros({2});
  student.data<float>()[3] = NAN;
  g.data<float>()[1] = 1;
  const Kl k = kl(student, teacher, {}, row_lse(teacher));
  Tensor dx = Tensor::like(student);
  BRINE_CALL(dx, kl_logits_backward, dx, g, student, k.lse, k.unlisted, teacher, Tensor(),
             row_lse(teacher));
  CHECK(largest(dx.select(0, 0).to_vector()) == 0);
  CHECK(largest(dx.select(0, 1).to_vector()) > 0);
}
