// The teacher's mass on a mask against slow sums over dense maps.
#include "autograd/ops.h"
#include "tests/sparse_oracle.h"

namespace brine::test {
namespace {

// The five sums by their definitions, over whole groups of dense rows; the kernel is
// attention_recall.
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

TEST_CASE("recall_sums equals slow sums, from a map and from the teacher's q and k") {
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
      const RecallSums got = recall_sums(teacher, csr, m.K, m.visible(), m.config());
      CHECK(got.rows.item() == double(rows));
      CHECK(got.sums.shape() == Shape{5, m.H});
      const std::vector<double> sums = got.sums.to_vector();
      std::vector<double> mean(5, 0.0);
      for (size_t i = 0; i < sums.size() && rows > 0; ++i) {
        mean[i / size_t(m.H)] += sums[i] / double(rows * m.H);
      }
      CHECK(close(mean, {wanted.begin(), wanted.end()}, 1e-12, 1e-12, "recall_sums"));
      CHECK(mean[1] >= mean[0]);
    }
  }
}

}  // namespace brine::test
