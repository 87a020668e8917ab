// The metrics of GLUE against hand counts and against numbers of scipy 1.x and scikit-learn 1.x.
#include "distill/evaluation/tasks/metrics.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "tensor/base/error.h"

using namespace brine;
using namespace brine::distill;

namespace {

using Reals = std::vector<double>;
using enum data::Metric;

doctest::Approx approx(double value) { return doctest::Approx(value).epsilon(1e-13); }

// One metric of a task of two classes, or of a regression.
double score(data::Metric metric, const Reals& p, const Reals& t) {
  data::Task task;
  task.metrics = {metric == spearman ? pearson : metric, metric};
  return score_task(task, p, t).back().second;
}

}  // namespace

TEST_CASE("metrics: counted manually") {
  // TP 2 (rows 0, 1), FP 1 (row 2), FN 1 (row 3), TN 1 (row 4).
  Reals p = {1, 1, 1, 0, 0}, t = {1, 1, 0, 1, 0};
  CHECK(score(accuracy, p, t) == approx(3.0 / 5));
  CHECK(score(f1, p, t) == approx(4.0 / 6));
  // (TP TN - FP FN) / sqrt((TP+FP)(TP+FN)(TN+FP)(TN+FN)) = (2 - 1) / sqrt(3 3 2 2)
  CHECK(score(matthews, p, t) == approx(1.0 / 6));
  Reals wrong = {0, 0, 1, 0, 1};
  CHECK(score(matthews, wrong, t) == approx(-1));
  CHECK(score(f1, wrong, t) == 0);
  CHECK(score(matthews, t, t) == 1);
  // x = 1 2 3, y = 1 3 2: covariance 1, variances 2 and 2.
  CHECK(score(pearson, {1, 2, 3}, {1, 3, 2}) == approx(0.5));
  // Ranks 1.5 1.5 3 and 1 2 3: 1.5 / sqrt(1.5 2).
  CHECK(score(spearman, {7, 7, 100}, {-1, 0, 50}) == approx(1.5 / std::sqrt(3.0)));
  CHECK(score(spearman, {1, 10, 100}, {3, 2, 1}) == approx(-1));
}

TEST_CASE("metrics: as scikit-learn and scipy compute them") {
  Reals p, t, p3, t3;
  for (int32_t i = 0; i < 37; ++i) {
    p.push_back(i * i / 4 % 2);
    t.push_back((i * i / 4 + (i % 4 == 0)) % 2);
  }
  CHECK(score(accuracy, p, t) == approx(0.7297297297297297));
  CHECK(score(f1, p, t) == approx(0.6428571428571429));
  CHECK(score(matthews, p, t) == approx(0.5518254055364692));
  for (int32_t i = 0; i < 41; ++i) {
    p3.push_back(i * i / 3 % 3);
    t3.push_back((i * i / 3 + (i % 5 == 0)) % 3);
  }
  CHECK(score(accuracy, p3, t3) == approx(0.7804878048780488));
  CHECK(score(matthews, p3, t3) == approx(0.6484313026604842));
  Reals x, y;  // 11 and 19 different values among 29
  for (int i = 0; i < 29; ++i) {
    x.push_back(i * 37 % 11 / 4.0);
    y.push_back(std::nearbyint((i * 23 % 13 / 3.0 + i * 37 % 11 * 0.2) * 4) / 4);
  }
  CHECK(score(pearson, x, y) == approx(0.459452689036625));
  CHECK(score(spearman, x, y) == approx(0.43598449691147756));
  CHECK(score(spearman, y, x) == score(spearman, x, y));
}

TEST_CASE("metrics: of a task, with 95 % intervals and counts by class") {
  data::Task task = data::task_named("tsv");
  task.labels = {"a", "b", "c", "never"};
  const Reals p = {0, 1, 2, 2, 1, 0}, t = {0, 1, 2, 1, 1, 2};
  const Values scores = score_task(task, p, t);
  REQUIRE(scores.size() == 3);
  CHECK(scores[0].second == approx(4.0 / 6));
  // F1 of a, b and c: 2 / 3, 4 / 5 and 2 / 4; the class that does not occur does not count.
  CHECK(scores[1].second == approx((2.0 / 3 + 4.0 / 5 + 2.0 / 4) / 3));
  CHECK(confusion(4, p, t) == std::vector<int64_t>{1, 0, 0, 0, 0, 2, 1, 0, 1, 0, 1, 0, 0, 0, 0, 0});
  task.labels = {"a", "b"};
  CHECK(score_task(task, Reals{1, 1, 1, 0, 0}, Reals{1, 1, 0, 1, 0})[1].second == approx(4.0 / 6));
  // 400 texts of which 300 are right: Wilson's interval, and the normal one of Matthews' phi .5
  // with its standard error of about (1 - .25) / 20 = .0433.
  Reals answers, truth;
  for (int i = 0; i < 400; ++i) {
    truth.push_back(i % 2);
    answers.push_back(i % 8 < 6 ? i % 2 : 1 - i % 2);
  }
  const std::vector<Interval> intervals = score_intervals(task, answers, truth);
  REQUIRE(intervals.size() == 3);
  CHECK(intervals[0].low == doctest::Approx(0.7053).epsilon(1e-3));
  CHECK(intervals[0].high == doctest::Approx(0.7900).epsilon(1e-3));
  CHECK(intervals[1].low < 0.75);  // F1
  CHECK(intervals[1].high > 0.75);
  CHECK(intervals[2].low == doctest::Approx(0.5 - 1.96 * 0.0433).epsilon(0.03));
  CHECK(intervals[2].high == doctest::Approx(0.5 + 1.96 * 0.0433).epsilon(0.03));
}

TEST_CASE("metrics: where nothing is defined they are 0; sizes must agree") {
  Reals zeros(4, 0), ones(4, 1), mixed = {0, 1, 1, 0};
  CHECK(score(matthews, zeros, mixed) == 0);
  CHECK(score(matthews, mixed, ones) == 0);
  CHECK(score(matthews, zeros, zeros) == 0);
  CHECK(score(f1, zeros, zeros) == 0);
  CHECK(score(accuracy, zeros, zeros) == 1);
  CHECK(score(pearson, {1, 1, 1}, {1, 2, 3}) == 0);
  CHECK(score(spearman, {1, 2, 3}, {5, 5, 5}) == 0);
  // A large mean must not drown the differences.
  CHECK(score(pearson, {1e8 + 1, 1e8 + 2, 1e8 + 3}, {1, 3, 2}) == approx(0.5));
  CHECK_THROWS_WITH_AS(score(accuracy, zeros, {1}), "metrics: 4 predictions for 1 rows", Error);
  CHECK_THROWS_WITH_AS(score(pearson, {}, {}), "metrics: 0 predictions for 0 rows", Error);
}

TEST_CASE("metrics: each task has its own, under the usual names") {
  auto names = [](const std::string& task, const Reals& p, const Reals& t) {
    std::string out;
    for (auto& [name, value] : score_task(data::task_named(task), p, t)) {
      out += name + "=" + std::to_string(value) + " ";
    }
    return out;
  };
  Reals p = {1, 1, 1, 0, 0}, t = {1, 1, 0, 1, 0};
  CHECK(names("cola", p, t) == "matthews_correlation=0.166667 ");
  CHECK(names("mrpc", p, t) == "accuracy=0.600000 f1=0.666667 ");
  CHECK(names("qqp", p, t) == "accuracy=0.600000 f1=0.666667 ");
  for (const char* task : {"sst2", "mnli", "qnli", "rte", "wnli", "wordnet", "books"}) {
    CHECK(names(task, p, t) == "accuracy=0.600000 ");
  }
  CHECK(names("stsb", {1, 2, 3}, {1, 3, 2}) == "pearson=0.500000 spearmanr=0.500000 ");
}
