// The teacher's summary against sums over its map.
#include "tests/teacher_cases.h"

namespace brine::test {

TEST_CASE("the teacher's summary equals sums over its map, from the map and from q and k") {
  for (const MaskCase& m : loss_cases()) {
    INFO(m.name());
    Tensor q = normal({m.B, m.H, m.T, 4}, 1, Dtype::f64),
           k = normal({m.B, m.H, m.T, 4}, 2, Dtype::f64);
    Tensor map = teacher_map(q, k, m);
    std::vector<double> t = map.to_vector();
    std::vector<double> tau(size_t(m.B * m.H * m.T * m.K), 0), logs, squares;
    each_row(m, [&](int64_t b, int64_t h, int64_t r) {
      std::vector<int64_t> column = columns_of_keys(m.width(b, r), m.K);
      logs.push_back(0);
      squares.push_back(0);
      for (size_t j = 0; j < column.size(); ++j) {
        double x = t[m.index(b, h, r, int64_t(j), m.T)];
        tau[m.index(b, h, r, column[j], m.K)] += x;
        logs.back() += x * std::log(x);
        squares.back() += x * x;
      }
    });
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

TEST_CASE("summarize_teacher refuses K = 0") {
  Tensor q = normal({1, 2, 9, 4}, 1);
  CHECK_THROWS_AS(summarize_teacher({{}, q, q}, 0, {}), Error);
}

}  // namespace brine::test
