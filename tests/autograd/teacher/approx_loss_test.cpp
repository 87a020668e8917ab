// L_approx in K columns against the widened T x T map.
#include <numeric>

#include "autograd/ops.h"
#include "tests/teacher_cases.h"

namespace brine::test {
namespace {

// The value of each key's column, as often as it has keys: no normalisation over keys.
std::vector<double> repeated(const std::vector<double>& of_columns, const MaskCase& m) {
  std::vector<double> a(size_t(m.B * m.H * m.T * m.T), 0);
  each_row(m, [&](int64_t b, int64_t h, int64_t t) {
    std::vector<int64_t> column = columns_of_keys(m.width(b, t), m.K);
    for (size_t j = 0; j < column.size(); ++j) {
      a[m.index(b, h, t, int64_t(j), m.T)] = of_columns[m.index(b, h, t, column[j], m.K)];
    }
  });
  return a;
}

// softmax over keys of the score of each key's column.
std::vector<double> widened(std::vector<double> scores, const MaskCase& m) {
  for (double& score : scores) score = std::exp(score);
  std::vector<double> a = repeated(scores, m);
  for (auto row = a.begin(); row != a.end(); row += m.T) {
    const double sum = std::accumulate(row, row + m.T, 0.0);
    for (int64_t j = 0; j < m.T && sum > 0; ++j) row[j] /= sum;
  }
  return a;
}

// softmax over the columns that contain a key.
std::vector<double> of_columns(const std::vector<double>& scores, const MaskCase& m) {
  std::vector<double> p(scores.size(), 0);
  each_row(m, [&](int64_t b, int64_t h, int64_t t) {
    const std::vector<int64_t> n = keys_per_column(m.width(b, t), m.K);
    double sum = 0;
    for (int64_t c = 0; c < m.K; ++c) {
      if (n[size_t(c)] > 0) sum += std::exp(scores[m.index(b, h, t, c, m.K)]);
    }
    for (int64_t c = 0; c < m.K; ++c) {
      const size_t at = m.index(b, h, t, c, m.K);
      if (n[size_t(c)] > 0) p[at] = std::exp(scores[at]) / sum;
    }
  });
  return p;
}

}  // namespace

TEST_CASE("approx_loss equals the loss of the widened T x T map, with its gradient") {
  std::vector<MaskCase> cases = loss_cases();
  cases.push_back({.B = 520, .H = 1, .T = 2, .K = 2});  // sums of many blocks of a GPU
  cases.push_back({.B = 2, .H = 2, .T = 41, .K = 64, .lengths = {5, 41}});
  cases.push_back({.B = 3, .H = 2, .T = 70, .K = 16, .causal = false, .lengths = {70, 0, 33}});
  for (const MaskCase& m : cases) {
    Tensor q = normal({m.B, m.H, m.T, 4}, 1), k = normal({m.B, m.H, m.T, 4}, 2);
    Tensor map = teacher_map(q.to(Dtype::f64), k.to(Dtype::f64), m);
    auto f = [=](In in) {
      TeacherAttention teacher{beside(map, in[0]), {}, {}};
      return approx_loss(in[0], summarize_teacher(teacher, m.K, m.visible()), m.visible());
    };
    auto oracle = [=](In in) {
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

TEST_CASE("approx_loss_of_logs equals the loss of the T x T map of repeated probabilities") {
  for (const MaskCase& m : loss_cases()) {
    Tensor q = normal({m.B, m.H, m.T, 4}, 1), k = normal({m.B, m.H, m.T, 4}, 2);
    Tensor map = teacher_map(q.to(Dtype::f64), k.to(Dtype::f64), m);
    auto loss_of = [=](const Tensor& logs) {
      TeacherAttention teacher{beside(map, logs), {}, {}};
      return approx_loss_of_logs(logs, summarize_teacher(teacher, m.K, m.visible()), m.visible());
    };
    // Of a softmax over columns, from its scores.
    check_op({.name = "probabilities " + m.name(),
              .inputs = {normal({m.B, m.H, m.T, m.K}, 3, Dtype::f32, 2, 2)},
              .f = [=](In in) { return loss_of(column_log_softmax(in[0], m.visible())); },
              .oracle =
                  [=](In in) {
                    const auto p = of_columns(in[0].to_vector(), m);
                    return naive_loss(map.to_vector(), repeated(p, m), m);
                  }});
    // Of any positive numbers.
    check_op({.name = "logs " + m.name(),
              .inputs = {normal({m.B, m.H, m.T, m.K}, 4, Dtype::f32, -1, 1)},
              .f = [=](In in) { return loss_of(in[0]); },
              .oracle =
                  [=](In in) {
                    std::vector<double> a = in[0].to_vector();
                    for (double& x : a) x = std::exp(x);
                    return naive_loss(map.to_vector(), repeated(a, m), m);
                  }});
  }
}

TEST_CASE("approx_loss_of_logs of the estimate that sums to 1 over keys is approx_loss") {
  for (const MaskCase& m : loss_cases()) {
    INFO(m.name());
    const Tensor q = normal({m.B, m.H, m.T, 4}, 1, Dtype::f64);
    const Tensor scores = normal({m.B, m.H, m.T, m.K}, 3, Dtype::f64, 2, 3);
    const TeacherSummary summary = summarize_teacher({{}, q, q}, m.K, m.visible());
    std::vector<double> logs;
    for (double a : widened(scores.to_vector(), m)) logs.push_back(std::log(a));
    // The first key of a column has the column's value.
    std::vector<double> columns(size_t(scores.numel()), 0);
    for (int64_t r = 0; r < m.B * m.H * m.T; ++r) {
      const auto of_key = columns_of_keys(m.width(r / m.T / m.H, r % m.T), m.K);
      for (size_t j = 0; j < of_key.size(); ++j) {
        columns[size_t(r * m.K + of_key[j])] = logs[size_t(r * m.T) + j];
      }
    }
    const Tensor given = Tensor::from(columns, scores.shape());
    CHECK(close(approx_loss_of_logs(given, summary, m.visible()),
                approx_loss(scores, summary, m.visible()), 1e-12, 1e-12));
  }
}

TEST_CASE("approx_loss_of_logs ignores columns without keys and refuses other summaries") {
  const Tensor q = normal({1, 2, 9, 4}, 1), scores = normal({1, 2, 9, 8}, 3);
  const TeacherSummary summary = summarize_teacher({{}, q, q}, 8, {});
  Tensor other = scores.clone();
  for (int64_t h = 0; h < 2; ++h) {  // the row of one key has it in column 3
    for (int64_t c = 0; c < 8; ++c) {
      if (c != 3) other.data<float>()[h * 72 + c] = NAN;
    }
  }
  const Tensor a = require_grad(scores.clone()), b = require_grad(other);
  const Tensor x = approx_loss_of_logs(column_log_softmax(a, {}), summary, {}),
               y = approx_loss_of_logs(column_log_softmax(b, {}), summary, {});
  CHECK(same_bits(x, y));
  backward(x, cotangent(x));
  backward(y, cotangent(y));
  CHECK(same_bits(grad(a), grad(b)));
  CHECK_THROWS_AS(approx_loss_of_logs(normal({1, 2, 9, 4}, 1), summary, {}), Error);
}

}  // namespace brine::test
