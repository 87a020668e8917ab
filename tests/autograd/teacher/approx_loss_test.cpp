// L_approx in K columns against the widened T x T map.
#include "autograd/ops.h"
#include "tests/teacher_cases.h"

namespace brine::test {
namespace {

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

}  // namespace

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

TEST_CASE("approx_loss of a row of one key and of a batch of none is 0") {
  Tensor q = normal({2, 2, 1, 4}, 1), k = normal({2, 2, 1, 4}, 2);
  for (std::vector<int64_t> lengths : {std::vector<int64_t>{1, 1}, {0, 0}, {0, 1}}) {
    Visibility visible{true, Tensor::from(lengths, {2})};
    TeacherSummary summary = summarize_teacher({{}, k, q}, 8, visible);
    CHECK(largest(approx_loss(normal({2, 2, 1, 8}, 3), summary, visible).to_vector()) < 1e-6);
  }
}

TEST_CASE("approx_loss refuses a summary of other columns") {
  Tensor q = normal({1, 2, 9, 4}, 1);
  TeacherSummary summary = summarize_teacher({{}, q, q}, 8, {});
  CHECK_THROWS_AS(approx_loss(normal({1, 2, 9, 4}, 1), summary, {}), Error);
}

}  // namespace brine::test
