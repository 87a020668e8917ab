// Mask recall against slow sums over dense maps.
#include "distill/evaluation/recall.h"

#include "tests/sparse_oracle.h"

namespace brine::test {
namespace {

// The five ways by the words of the method, over whole groups of dense rows.
std::array<double, 5> naive_recall(const std::vector<double>& t, const std::vector<double>& mask,
                                   const std::vector<double>& best, const MaskCase& m,
                                   int64_t& rows) {
  std::array<double, 5> sum = {};
  rows = 0;
  for (const auto& group : budget_groups(m)) {
    std::vector<double> values;
    int64_t budget = 0, members = 0;
    for (auto [b, h, r] : group) {
      if (m.width(b, r) <= m.k) continue;
      ++members;
      for (int64_t j = 0; j < m.width(b, r); ++j) {
        size_t at = m.index(b, h, r, j, m.T);
        values.push_back(t[at]);
        budget += mask[at] != 0;
        sum[0] += mask[at] * t[at];
        sum[2] += best[at] * t[at];
      }
    }
    rows += members;
    std::sort(values.begin(), values.end(), std::greater<>());
    for (int64_t i = 0; i < budget; ++i) sum[1] += values[size_t(i)];
    int64_t member = 0;
    for (auto [b, h, r] : group) {
      int64_t w = m.width(b, r);
      if (w <= m.k) continue;
      int64_t n = std::min(w, budget / members + (member++ < budget % members));
      int64_t first = w - n;
      if (!m.causal) first = std::clamp<int64_t>(r - n / 2, 0, w - n);  // the nearest
      for (int64_t j = first; j < first + n; ++j) sum[3] += t[m.index(b, h, r, j, m.T)];
      sum[4] += double(budget) / double(members * w);
    }
  }
  for (double& x : sum) x = rows ? x / double(rows) : 0;
  rows /= m.H;
  return sum;
}

}  // namespace

TEST_CASE("recall equals slow sums, from a map and from the teacher's q and k") {
  for (const MaskCase& m : mask_cases()) {
    INFO(m.name());
    Tensor q = normal({m.B, m.H, m.T, 4}, 1, Dtype::f64, 0, 2);
    Tensor k = normal({m.B, m.H, m.T, 4}, 2, Dtype::f64);
    std::vector<double> t = naive_attention(q.to_vector(), k.to_vector(), {}, 4, m);
    Tensor map = Tensor::from(t, {m.B, m.H, m.T, m.T});
    Tensor estimate = uniform({m.B, m.H, m.T, m.K}, 3, 0, 1);
    FlatCsr csr =
        build_csr(select_columns(estimate, m.visible(), m.config()).selected, m.visible(), m.k);
    std::vector<double> tau = summarize_teacher({map, {}, {}}, m.K, m.visible()).tau.to_vector();
    std::vector<double> best = naive_mask(naive_select(tau, m).selected, m);
    int64_t rows = 0;
    std::array<double, 5> wanted = naive_recall(t, csr_to_mask(csr).to_vector(), best, m, rows);
    for (const TeacherAttention& teacher : {TeacherAttention{map, {}, {}}, {{}, q, k}}) {
      distill::Recall got = distill::attention_recall(teacher, csr, m.K, m.visible(), m.config());
      distill::RecallMeans r = mean(got);
      CHECK(got.rows == rows);
      CHECK(int64_t(got.mask.size()) == m.H);
      CHECK(close({r.mask, r.top_keys, r.best_columns, r.recent, r.random},
                  {wanted.begin(), wanted.end()}, 1e-12, 1e-12, "recall"));
      CHECK(r.top_keys >= r.mask);
    }
  }
}

TEST_CASE("the recall of several batches adds up, by any number of threads") {
  MaskCase m{.B = 4, .H = 2, .T = 90, .K = 8, .k = 5, .lengths = {90, 71, 3, 0}};
  Tensor q = normal({4, 2, 90, 8}, 1), k = normal({4, 2, 90, 8}, 2);
  Tensor estimate = uniform({4, 2, 90, 8}, 3, 0, 1);
  auto part = [&](int64_t first, int64_t count) {
    std::vector<int64_t> own(m.lengths.begin() + first, m.lengths.begin() + first + count);
    Visibility visible{true, Tensor::from(own, {count})};
    auto cut = [&](const Tensor& x) { return x.slice(0, first, count).contiguous(); };
    FlatCsr csr =
        build_csr(select_columns(cut(estimate), visible, m.config()).selected, visible, m.k);
    return distill::attention_recall({{}, cut(q), cut(k)}, csr, m.K, visible, m.config());
  };
  distill::Recall whole = part(0, 4), sum;
  sum += part(0, 1);
  sum += part(1, 3);
  CHECK(sum.rows == whole.rows);
  CHECK(sum.rows == (90 - 5) + (71 - 5));
  for (size_t h = 0; h < 2; ++h) {
    CHECK(sum.mask[h] == doctest::Approx(whole.mask[h]));
    CHECK(sum.top_keys[h] == doctest::Approx(whole.top_keys[h]));
    CHECK(sum.random[h] == doctest::Approx(whole.random[h]));
  }
  for (int n : {1, 2, 3}) {
    Threads set(n);
    distill::Recall again = part(0, 4);
    CHECK(again.mask == whole.mask);
    CHECK(again.top_keys == whole.top_keys);
    CHECK(again.recent == whole.recent);
  }
  distill::Recall other;
  other.mask = {1, 2, 3};
  CHECK_THROWS_AS(sum += other, Error);
}

}  // namespace brine::test
