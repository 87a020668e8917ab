// L_approx in K columns against the widened T x T map, L_prob by tiles against the dense map.
#include "autograd/ops.h"
#include "tests/sparse_oracle.h"

namespace brine::test {
namespace {

Tensor teacher_map(const Tensor& q, const Tensor& k, const MaskCase& m) {
  std::vector<double> p = naive_attention(q.to_vector(), k.to_vector(), {}, q.dim(3), m);
  return Tensor::from(p, {m.B, m.H, m.T, m.T}).to(q.dtype());
}

// softmax over keys of the score of each key's column.
std::vector<double> widened(const std::vector<double>& scores, const MaskCase& m) {
  std::vector<double> a(size_t(m.B * m.H * m.T * m.T), 0);
  for (int64_t b = 0; b < m.B; ++b) {
    for (int64_t h = 0; h < m.H; ++h) {
      for (int64_t t = 0; t < m.T; ++t) {
        std::vector<int64_t> column = columns_of_keys(m.width(b, t), m.K);
        double sum = 0;
        for (size_t j = 0; j < column.size(); ++j) {
          sum += std::exp(scores[m.index(b, h, t, column[j], m.K)]);
        }
        for (size_t j = 0; j < column.size(); ++j) {
          a[m.index(b, h, t, int64_t(j), m.T)] =
              std::exp(scores[m.index(b, h, t, column[j], m.K)]) / sum;
        }
      }
    }
  }
  return a;
}

// All rows valid, lengths 0, w < K, K > T.
std::vector<MaskCase> loss_cases() {
  return {
      {.B = 1, .H = 2, .T = 9, .K = 4},
      {.B = 2, .H = 3, .T = 37, .K = 8, .lengths = {37, 30}},
      {.B = 3, .H = 1, .T = 21, .K = 64, .lengths = {0, 21, 1}},
      {.B = 2, .H = 2, .T = 24, .K = 5, .causal = false, .lengths = {24, 17}},
      {.B = 1, .H = 1, .T = 2, .K = 8},
  };
}

}  // namespace

TEST_CASE("the teacher's summary equals sums over its map, from the map and from q and k") {
  for (const MaskCase& m : loss_cases()) {
    INFO(m.name());
    Tensor q = normal({m.B, m.H, m.T, 4}, 1, Dtype::f64),
           k = normal({m.B, m.H, m.T, 4}, 2, Dtype::f64);
    Tensor map = teacher_map(q, k, m);
    std::vector<double> t = map.to_vector();
    std::vector<double> tau(size_t(m.B * m.H * m.T * m.K), 0), logs, squares;
    for (int64_t b = 0; b < m.B; ++b) {
      for (int64_t h = 0; h < m.H; ++h) {
        for (int64_t r = 0; r < m.T; ++r) {
          std::vector<int64_t> column = columns_of_keys(m.width(b, r), m.K);
          logs.push_back(0);
          squares.push_back(0);
          for (size_t j = 0; j < column.size(); ++j) {
            double x = t[m.index(b, h, r, int64_t(j), m.T)];
            tau[m.index(b, h, r, column[j], m.K)] += x;
            logs.back() += x * std::log(x);
            squares.back() += x * x;
          }
        }
      }
    }
    for (Dtype type : {Dtype::f64, Dtype::f32}) {
      double tolerance = type == Dtype::f64 ? 1e-12 : 1e-6;
      for (const TeacherAttention& teacher :
           {TeacherAttention{map.to(type), {}, {}}, TeacherAttention{{}, q.to(type), k.to(type)}}) {
        TeacherSummary s = summarize_teacher(teacher, m.K, m.visible());
        CHECK(close(s.tau.to_vector(), tau, tolerance, tolerance, "tau"));
        CHECK(close(s.t_log_t.to_vector(), logs, tolerance, tolerance, "t log t"));
        CHECK(close(s.t_square.to_vector(), squares, tolerance, tolerance, "t^2"));
      }
    }
  }
}

TEST_CASE("approx_loss equals the loss of the widened T x T map, with its gradient") {
  for (const MaskCase& m : loss_cases()) {
    Tensor q = normal({m.B, m.H, m.T, 4}, 1), k = normal({m.B, m.H, m.T, 4}, 2);
    Tensor map = teacher_map(q.to(Dtype::f64), k.to(Dtype::f64), m);
    auto f = [=](const std::vector<Tensor>& in) {
      TeacherAttention teacher{map.to(in[0].dtype()), {}, {}};
      return approx_loss(in[0], summarize_teacher(teacher, m.K, m.visible()), m.visible());
    };
    auto oracle = [=](const std::vector<Tensor>& in) {
      return naive_loss(map.to_vector(), widened(in[0].to_vector(), m), m);
    };
    check_op({.name = "approx_loss " + m.name(),
              .inputs = {normal({m.B, m.H, m.T, m.K}, 3, Dtype::f32, 2, 3)},
              .f = f,
              .oracle = oracle});
  }
}

TEST_CASE("prob_loss equals the dense loss, from a map and from the teacher's q and k") {
  for (const MaskCase& m : loss_cases()) {
    Shape shape{m.B, m.H, m.T, 6};
    Tensor tq = normal(shape, 1), tk = normal(shape, 2);
    Tensor map = teacher_map(tq.to(Dtype::f64), tk.to(Dtype::f64), m);
    for (bool with_map : {true, false}) {
      auto f = [=](const std::vector<Tensor>& in) {
        Dtype type = in[0].dtype();
        TeacherAttention teacher = with_map ? TeacherAttention{map.to(type), {}, {}}
                                            : TeacherAttention{{}, tq.to(type), tk.to(type)};
        return prob_loss(in[0], in[1], teacher, m.visible());
      };
      auto oracle = [=](const std::vector<Tensor>& in) {
        std::vector<double> a = naive_attention(in[0].to_vector(), in[1].to_vector(), {}, 6, m);
        return naive_loss(map.to_vector(), a, m);
      };
      check_op({.name = join("prob_loss ", with_map ? "map " : "q, k ", m.name()),
                .inputs = {normal(shape, 3), normal(shape, 4)},
                .f = f,
                .oracle = oracle});
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
      return run(
          [&](const std::vector<Tensor>& x) { return prob_loss(x[0], x[1], teacher, m.visible()); },
          in, dy);
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

TEST_CASE("a row of one key and a batch of none cost nothing") {
  Tensor q = normal({2, 2, 1, 4}, 1), k = normal({2, 2, 1, 4}, 2);
  for (std::vector<int64_t> lengths : {std::vector<int64_t>{1, 1}, {0, 0}, {0, 1}}) {
    Visibility visible{true, Tensor::from(lengths, {2})};
    TeacherAttention teacher{{}, k, q};
    CHECK(largest(prob_loss(q, k, teacher, visible).to_vector()) < 1e-6);
    TeacherSummary summary = summarize_teacher(teacher, 8, visible);
    CHECK(largest(approx_loss(normal({2, 2, 1, 8}, 3), summary, visible).to_vector()) < 1e-6);
  }
}

TEST_CASE("a teacher that is the student costs nothing and pulls nowhere") {
  Tensor q = normal({1, 2, 33, 8}, 1, Dtype::f64), k = normal({1, 2, 33, 8}, 2, Dtype::f64);
  Run r = run(
      [&](const std::vector<Tensor>& x) {
        return prob_loss(x[0], x[1], {{}, q, k}, {});
      },
      {q, k}, Tensor::from(std::vector<double>{1, 1}, {2}));
  CHECK(largest(r.y.to_vector()) < 1e-14);
  CHECK(largest(r.grads[0].to_vector()) < 1e-14);
  CHECK(largest(r.grads[1].to_vector()) < 1e-14);
}

TEST_CASE("a teacher that puts 0 on a visible key is no error") {
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

TEST_CASE("the losses refuse what does not fit") {
  Tensor q = normal({1, 2, 9, 4}, 1), other = normal({1, 2, 8, 4}, 1);
  CHECK_THROWS_WITH(prob_loss(q, q, {}, {}),
                    "prob_loss: the teacher's attention is absent, neither a map nor q and k are "
                    "given");
  CHECK_THROWS_AS(prob_loss(q, other, {{}, q, q}, {}), Error);
  CHECK_THROWS_AS(prob_loss(q, q, {{}, other, other}, {}), Error);
  CHECK_THROWS_AS(prob_loss(q, q, {normal({1, 2, 9, 8}, 1), {}, {}}, {}), Error);
  CHECK_THROWS_AS(prob_loss(q, q, {{}, q.to(Dtype::f64), q.to(Dtype::f64)}, {}), Error);
  TeacherSummary summary = summarize_teacher({{}, q, q}, 8, {});
  CHECK_THROWS_AS(approx_loss(normal({1, 2, 9, 4}, 1), summary, {}), Error);
  CHECK_THROWS_AS(summarize_teacher({{}, q, q}, 0, {}), Error);
}

}  // namespace brine::test
