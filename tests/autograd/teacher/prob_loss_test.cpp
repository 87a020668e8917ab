// L_prob by tiles against the dense map.
#include "autograd/ops.h"
#include "tests/refusals.h"
#include "tests/teacher_cases.h"

namespace brine::test {

TEST_CASE("prob_loss equals the dense loss, from a map and from the teacher's q and k") {
  struct Sizes {
    int64_t d, of_teacher;
  };
  for (const MaskCase& m : loss_cases()) {
    const bool large = m.T > 100;
    for (auto [d, of_teacher] : {Sizes{6, 3}, {large ? 70 : 5, large ? 132 : 20}}) {
      const Shape shape{m.B, m.H, m.T, d}, theirs{m.B, m.H, m.T, of_teacher};
      Tensor tq = normal(theirs, 1), tk = normal(theirs, 2);
      Tensor map = teacher_map(tq.to(Dtype::f64), tk.to(Dtype::f64), m);
      for (bool with_map : {true, false}) {
        auto f = [=](In in) {
          const TeacherAttention teacher =
              with_map ? TeacherAttention{beside(map, in[0]), {}, {}}
                       : TeacherAttention{{}, beside(tq, in[0]), beside(tk, in[0])};
          return prob_loss(in[0], in[1], teacher, m.visible());
        };
        auto oracle = [=, d = d](In in) {
          std::vector<double> a = naive_attention(in[0].to_vector(), in[1].to_vector(), {}, d, m);
          return naive_loss(map.to_vector(), a, m);
        };
        check_op({.name = join("prob_loss d ", d, with_map ? " map " : " q, k ", m.name()),
                  .inputs = {normal(shape, 3), normal(shape, 4)},
                  .f = f,
                  .oracle = oracle,
                  .grad_tolerance = large ? 1e-5 : 1e-6});
      }
    }
  }
}

TEST_CASE("prob_loss over many tiles: both teachers agree and threads change no bit") {
  for (bool causal : {true, false}) {
    MaskCase m{.B = 1, .H = 3, .T = 777, .causal = causal, .lengths = {701}};
    Shape shape{m.B, m.H, m.T, 32};
    Tensor tq = normal(shape, 1), tk = normal(shape, 2);
    TeacherAttention by_qk{{}, tq, tk}, by_map{teacher_map(tq, tk, m), {}, {}};
    std::vector<Tensor> in = {normal(shape, 3), normal(shape, 4)};
    Tensor dy = Tensor::from(std::vector<float>{0.1f, 1.0f}, {2});
    auto loss = [&](const TeacherAttention& teacher) {
      return run([&](In x) { return prob_loss(x[0], x[1], teacher, m.visible()); }, in, dy);
    };
    Run a = loss(by_map), b = loss(by_qk);
    CHECK(close(a.y, b.y, 1e-6, 1e-6));
    for (size_t i = 0; i < 2; ++i) CHECK(close_to_scale(b.grads[i], a.grads[i], 1e-5));
    for (int n : {1, 2, 3}) {
      Threads set(n);
      Run again = loss(by_qk);
      CHECK(same_bits(again.y, b.y));
      for (size_t i = 0; i < 2; ++i) CHECK(same_bits(again.grads[i], b.grads[i]));
    }
  }
}

TEST_CASE("prob_loss of a row of one key and of a batch of none is 0") {
  Tensor q = normal({2, 2, 1, 4}, 1), k = normal({2, 2, 1, 4}, 2);
  for (std::vector<int64_t> lengths : {std::vector<int64_t>{1, 1}, {0, 0}, {0, 1}}) {
    Visibility visible{true, Tensor::from(lengths, {2})};
    CHECK(largest(prob_loss(q, k, {{}, k, q}, visible).to_vector()) < 1e-6);
  }
}

TEST_CASE("a teacher that is the student costs nothing and pulls nowhere") {
  Tensor q = normal({1, 2, 33, 8}, 1, Dtype::f64), k = normal({1, 2, 33, 8}, 2, Dtype::f64);
  Run r = run(
      [&](In x) {
        return prob_loss(x[0], x[1], {{}, q, k}, {});
      },
      {q, k}, Tensor::from(std::vector<double>{1, 1}, {2}));
  CHECK(largest(r.y.to_vector()) < 1e-14);
  CHECK(largest(r.grads[0].to_vector()) < 1e-14);
  CHECK(largest(r.grads[1].to_vector()) < 1e-14);
}

TEST_CASE("a teacher that puts 0 on a visible key is not an error") {
  MaskCase m{.B = 1, .H = 1, .T = 5, .K = 4};
  Tensor map = Tensor::zeros({1, 1, 5, 5}, Dtype::f64);
  for (int64_t t = 0; t < 5; ++t) map.data<double>()[t * 5] = 1;  // all on the first key
  Tensor q = normal({1, 1, 5, 3}, 1, Dtype::f64), k = normal({1, 1, 5, 3}, 2, Dtype::f64);
  std::vector<double> a = naive_attention(q.to_vector(), k.to_vector(), {}, 3, m);
  for (Dtype type : {Dtype::f64, Dtype::f32}) {
    Tensor y = prob_loss(q.to(type), k.to(type), {map.to(type), {}, {}}, {});
    CHECK(close(y.to_vector(), naive_loss(map.to_vector(), a, m), 1e-6, 1e-6));
  }
}

TEST_CASE("prob_loss refuses shapes that do not fit") {
  Tensor q = normal({1, 2, 9, 4}, 1), other = normal({1, 2, 8, 4}, 1);
  CHECK_REFUSES(prob_loss(q, q, {}, {}), "prob_loss", "attention", "map", "q", "k");
  CHECK_THROWS_AS(prob_loss(q, other, {{}, q, q}, {}), Error);
  CHECK_THROWS_AS(prob_loss(q, q, {{}, other, other}, {}), Error);
  CHECK_THROWS_AS(prob_loss(q, q, {normal({1, 2, 9, 8}, 1), {}, {}}, {}), Error);
  CHECK_THROWS_AS(prob_loss(q, q, {{}, q.to(Dtype::f64), q.to(Dtype::f64)}, {}), Error);
}

}  // namespace brine::test
