// The teacher's mass on a mask against slow sums over dense maps.
#include "tensor/mask/recall.h"
#include "autograd/ops.h"
#include "tests/sparse_oracle.h"

namespace brine::test {
namespace {

using Ways = std::array<double, recall::kWays>;

// The keys of a row by distance; the n nearest to row r among [from, w). The window of an even
// number of keys has one more on the left.
std::vector<int64_t> nearest(const MaskCase& m, int64_t w, int64_t r, int64_t n, int64_t from) {
  int64_t first = w - n;
  if (!m.causal) first = std::clamp<int64_t>(r - n / 2, from, w - n);
  std::vector<int64_t> keys;
  for (int64_t j = first; j < first + n; ++j) keys.push_back(j);
  return keys;
}

// Sums over rows that do not depend on budgets.
void add_row(Ways& sum, const std::vector<double>& t, const std::vector<double>& mask,
             const MaskCase& m, std::array<int64_t, 3> place) {
  auto [b, h, r] = place;
  const int64_t w = m.width(b, r);
  auto value = [&, b = b, h = h, r = r](int64_t j) { return t[m.index(b, h, r, j, m.T)]; };
  auto kept = [&, b = b, h = h, r = r](int64_t j) { return mask[m.index(b, h, r, j, m.T)]; };
  double covered = 0, heaviest = 0, local = 0, first = 0;
  for (int64_t j = 0; j < w; ++j) covered += kept(j) * value(j);
  for (int64_t j = 0; j < w; ++j) heaviest = std::max(heaviest, value(j));
  bool hit = false;
  for (int64_t j = 0; j < w; ++j) hit |= kept(j) != 0 && value(j) == heaviest;
  sum[recall::kTopHit] += hit;
  for (int64_t j : nearest(m, w, r, std::min<int64_t>(64, w), 0)) {
    sum[recall::kNearAll] += value(j);
    local += kept(j) * value(j);
  }
  for (int64_t j = 0; j < std::min<int64_t>(4, w); ++j) {
    sum[recall::kFirstAll] += value(j);
    first += kept(j) * value(j);
  }
  sum[recall::kNearMask] += covered > 0 ? local / covered : 0;
  sum[recall::kFirstMask] += covered > 0 ? first / covered : 0;
}

// The means by their definitions, over whole groups of dense rows; the kernel is
// attention_recall.
Ways naive_recall(const std::vector<double>& t, const std::vector<double>& mask,
                  const std::vector<double>& best, const MaskCase& m, int64_t from, int64_t& rows) {
  Ways sum = {};
  rows = 0;
  for (const auto& whole : budget_groups(m)) {
    std::vector<std::array<int64_t, 3>> group;
    for (auto place : whole) {
      if (m.width(place[0], place[2]) > m.k && place[2] >= from) group.push_back(place);
    }
    const auto members = int64_t(group.size());
    rows += members;
    std::vector<double> values;
    int64_t budget = 0, member = 0;
    for (auto [b, h, r] : group) {
      add_row(sum, t, mask, m, {b, h, r});
      for (int64_t j = 0; j < m.width(b, r); ++j) {
        size_t at = m.index(b, h, r, j, m.T);
        values.push_back(t[at]);
        budget += mask[at] != 0;
        sum[recall::kMask] += mask[at] * t[at];
        sum[recall::kBestColumns] += best[at] * t[at];
      }
    }
    std::sort(values.begin(), values.end(), std::greater<>());
    for (int64_t i = 0; i < budget; ++i) sum[recall::kTopKeys] += values[size_t(i)];
    for (auto [b, h, r] : group) {
      const int64_t w = m.width(b, r);
      const int64_t n = std::min(w, budget / members + (member++ < budget % members));
      const int64_t sinks = n > 4 ? 4 : std::max<int64_t>(0, n - 1);
      for (int64_t j : nearest(m, w, r, n, 0)) sum[recall::kRecent] += t[m.index(b, h, r, j, m.T)];
      for (int64_t j = 0; j < sinks; ++j) sum[recall::kSinksRecent] += t[m.index(b, h, r, j, m.T)];
      for (int64_t j : nearest(m, w, r, n - sinks, sinks))
        sum[recall::kSinksRecent] += t[m.index(b, h, r, j, m.T)];
      sum[recall::kRandom] += double(budget) / double(members * w);
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
    for (int64_t from : {0, 7}) {
      int64_t rows = 0;
      const Ways wanted = naive_recall(t, csr_to_mask(csr).to_vector(), best, m, from, rows);
      for (const TeacherAttention& teacher : {TeacherAttention{map, {}, {}}, {{}, q, k}}) {
        const RecallSums got = recall_sums(teacher, csr, m.K, m.visible(), m.config(), from);
        CHECK(got.rows.item() == double(rows));
        CHECK(got.sums.shape() == Shape{recall::kWays, m.H});
        const std::vector<double> sums = got.sums.to_vector();
        std::vector<double> mean(recall::kWays, 0.0);
        for (size_t i = 0; i < sums.size() && rows > 0; ++i) {
          mean[i / size_t(m.H)] += sums[i] / double(rows * m.H);
        }
        CHECK(close(mean, {wanted.begin(), wanted.end()}, 1e-12, 1e-12, "recall_sums"));
        CHECK(mean[recall::kTopKeys] >= mean[recall::kMask]);
      }
    }
  }
}

}  // namespace brine::test
