// KL divergence, equal top tokens and the paired ratio of perplexities against sums in f64.
#include "distill/evaluation/health/kld.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "distill/evaluation/health/mask_health.h"
#include "tests/distill/setup.h"
#include "tests/messages.h"

namespace brine::test {
namespace {

// log softmax of a row.
std::vector<double> log_probabilities(const float* row, int64_t V) {
  double largest = row[0], sum = 0;
  for (int64_t v = 0; v < V; ++v) largest = std::max(largest, double(row[v]));
  for (int64_t v = 0; v < V; ++v) sum += std::exp(double(row[v]) - largest);
  std::vector<double> out;
  for (int64_t v = 0; v < V; ++v) out.push_back(double(row[v]) - largest - std::log(sum));
  return out;
}

struct ExpectedKld {
  std::vector<double> kl;
  int64_t same_top = 0;
  std::vector<PairedWindow> windows;
};

ExpectedKld expected_of(nn::Model& model, nn::Model& teacher, const WindowSource& windows) {
  NoGrad off;
  ExpectedKld out;
  const int64_t T = windows.window(), V = 37;
  for (int64_t w = 0; w < windows.size(); ++w) {
    const Batch batch = windows.in_order(w, 1);
    const Tensor a = model.logits(model.hidden({.ids = batch.ids}));
    const Tensor b = teacher.logits(teacher.hidden({.ids = batch.ids}));
    PairedWindow sums;
    for (int64_t t = 0; t + 1 < T; ++t) {
      const std::vector<double> p = log_probabilities(b.data<float>() + t * V, V);
      const std::vector<double> q = log_probabilities(a.data<float>() + t * V, V);
      double kl = 0;
      for (size_t v = 0; v < p.size(); ++v) kl += std::exp(p[v]) * (p[v] - q[v]);
      out.kl.push_back(kl);
      out.same_top += std::max_element(p.begin(), p.end()) - p.begin() ==
                      std::max_element(q.begin(), q.end()) - q.begin();
      const auto next = size_t(batch.ids.data<int32_t>()[t + 1]);
      sums.model -= q[next];
      sums.teacher -= p[next];
      ++sums.tokens;
    }
    out.windows.push_back(sums);
  }
  return out;
}

}  // namespace

TEST_CASE("kld: mean, median, percentile and top tokens against sums over single rows") {
  Pair pair({.windows = 5});
  const WindowSource windows = pair.source();
  const ExpectedKld e = expected_of(*pair.student, *pair.teacher, windows);
  double mean = 0;
  for (double x : e.kl) mean += x / double(e.kl.size());
  REQUIRE(mean > 1e-6);
  for (int64_t B : {1, 2, 8}) {
    LogitComparison comparison(pair.teacher);
    evaluate(*pair.student, windows, {.batch_size = B, .logits = &comparison});
    const data::Json t = to_json(comparison.result());
    CHECK(t["tokens"] == e.kl.size());
    CHECK(t["windows"] == 5);
    CHECK(double(t["kl_mean"]) == doctest::Approx(mean).epsilon(1e-3));
    CHECK(double(t["kl_median"]) == doctest::Approx(quantile(e.kl, 0.5)).epsilon(1e-2));
    CHECK(double(t["kl_p99"]) == doctest::Approx(quantile(e.kl, 0.99)).epsilon(1e-3));
    CHECK(double(t["same_top"]) == doctest::Approx(double(e.same_top) / double(e.kl.size())));
    const PerplexityRatio ratio = perplexity_ratio(e.windows);
    CHECK(double(t["perplexity_ratio"]) == doctest::Approx(ratio.value).epsilon(1e-6));
    CHECK(double(t["ratio_low"]) == doctest::Approx(*ratio.low).epsilon(1e-6));
    CHECK(double(t["ratio_high"]) == doctest::Approx(*ratio.high).epsilon(1e-6));
  }
}

TEST_CASE("kld: a model next to itself") {
  Pair pair({}, "dense");
  LogitComparison comparison(pair.teacher);
  evaluate(*pair.teacher, pair.source(), {.logits = &comparison});
  const data::Json t = to_json(comparison.result());
  CHECK(double(t["kl_mean"]) < 1e-7);
  CHECK(double(t["same_top"]) == 1);
  CHECK(double(t["perplexity_ratio"]) == 1);
  CHECK(double(t["ratio_low"]) == 1);
  CHECK(double(t["ratio_high"]) == 1);
}

TEST_CASE("perplexity_ratio: the interval of paired windows, weighed by their tokens") {
  // Equal windows: the mean of the differences, and the interval of Student's t.
  const std::vector<PairedWindow> even = {{12, 10, 10}, {11, 10, 10}, {13, 10, 10}, {12, 10, 10}};
  const PerplexityRatio r = perplexity_ratio(even);
  const double error = std::sqrt((0.0 + 0.01 + 0.01 + 0.0) / 3 / 4);
  CHECK(r.value == doctest::Approx(std::exp(0.2)));
  CHECK(*r.low == doctest::Approx(std::exp(0.2 - 3.182446 * error)).epsilon(1e-3));
  CHECK(*r.high == doctest::Approx(std::exp(0.2 + 3.182446 * error)).epsilon(1e-3));
  // What both models find hard does not widen it.
  std::vector<PairedWindow> shifted = even;
  for (size_t i = 0; i < shifted.size(); ++i) {
    shifted[i].model += 100 * double(i);
    shifted[i].teacher += 100 * double(i);
  }
  CHECK(*perplexity_ratio(shifted).high == doctest::Approx(*r.high));
  CHECK(perplexity_ratio({{3, 2, 1}, {3, 3, 3}}).value == doctest::Approx(std::exp(0.25)));
  CHECK_FALSE(perplexity_ratio({{3, 2, 1}}).low.has_value());
  CHECK(contains(message([] { perplexity_ratio({}); }), "no token is predicted"));
}

TEST_CASE("student_t_95: the values of tables") {
  const std::pair<int64_t, double> table[] = {{1, 12.706}, {2, 4.303},  {3, 3.182},  {4, 2.776},
                                              {5, 2.571},  {10, 2.228}, {30, 2.042}, {120, 1.980}};
  for (auto [freedom, value] : table) {
    CHECK(student_t_95(freedom) == doctest::Approx(value).epsilon(1e-3));
  }
  CHECK(student_t_95(1000000) == doctest::Approx(1.959966).epsilon(1e-6));
  CHECK(contains(message([] { student_t_95(0); }), "must be at least 1"));
}

}  // namespace brine::test
