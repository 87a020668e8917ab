// Mask recall against slow sums over dense maps, and of several batches.
#include "distill/evaluation/recall.h"

#include <set>

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
             const MaskCase& m, std::array<int64_t, 3> row) {
  auto [b, h, r] = row;
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

// The means by their definitions, over whole groups of dense rows, or of those in `only`.
Ways naive_recall(const std::vector<double>& t, const std::vector<double>& mask,
                  const std::vector<double>& best, const MaskCase& m, int64_t from, int64_t& rows,
                  const std::set<int64_t>& only = {}) {
  Ways sum = {};
  rows = 0;
  for (const auto& whole : budget_groups(m)) {
    std::vector<std::array<int64_t, 3>> group;
    for (auto row : whole) {
      if (m.width(row[0], row[2]) <= m.k || row[2] < from) continue;
      if (only.empty() || only.count(row[2])) group.push_back(row);
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

// A case with random queries and keys, and its oracle.
struct Setup {
  const MaskCase& m;
  Tensor q = normal({m.B, m.H, m.T, 4}, 1, Dtype::f64, 0, 2);
  Tensor k = normal({m.B, m.H, m.T, 4}, 2, Dtype::f64);
  std::vector<double> t = naive_attention(q.to_vector(), k.to_vector(), {}, 4, m);
  Tensor map = Tensor::from(t, {m.B, m.H, m.T, m.T});
  Tensor estimate = uniform({m.B, m.H, m.T, m.K}, 3, 0, 1);
  FlatCsr csr =
      build_csr(select_columns(estimate, m.visible(), m.config()).selected, m.visible(), m.k);

  void check(const TeacherAttention& teacher, double error,
             const std::set<int64_t>& only = {}) const {
    std::vector<double> tau = summarize_teacher({map, {}, {}}, m.K, m.visible()).tau.to_vector();
    std::vector<double> best = naive_mask(naive_select(tau, m).selected, m);
    int64_t rows = 0;
    const Ways wanted = naive_recall(t, csr_to_mask(csr).to_vector(), best, m, 0, rows, only);
    const distill::Recall got =
        distill::attention_recall(teacher, csr, m.K, m.visible(), m.config());
    CHECK(got.rows == rows);
    CHECK(got.heads() == m.H);
    std::vector<double> mean;
    for (int way = 0; way < recall::kWays; ++way) mean.push_back(got.mean(recall::Way(way)));
    CHECK(close(mean, {wanted.begin(), wanted.end()}, error, error, "attention_recall"));
    CHECK(mean[recall::kTopKeys] >= mean[recall::kMask]);
  }
};

}  // namespace

TEST_CASE("attention_recall equals slow sums, from a map and from the teacher's q and k") {
  for (const MaskCase& m : mask_cases()) {
    INFO(m.name());
    const Setup u{m};
    u.check({u.map, {}, {}}, 1e-12);
    u.check({{}, u.q, u.k}, 1e-12);
  }
}

TEST_CASE("attention_recall of a long text counts 256 of its rows, evenly spaced") {
  const MaskCase m{.B = 1, .H = 2, .T = 700, .K = 8, .k = 5, .mode = SelectMode::per_query};
  const Setup u{m};
  std::set<int64_t> only;
  for (int64_t i = 0; i < 256; ++i) only.insert(5 + (2 * i + 1) * 695 / 512);
  CHECK(only.size() == 256);
  u.check({{}, u.q, u.k}, 1e-12, only);
  u.check({{}, u.q.to(Dtype::f32), u.k.to(Dtype::f32)}, 1e-5, only);
}

TEST_CASE("the recall of several batches adds up, by any number of threads") {
  MaskCase m{.B = 4, .H = 2, .T = 90, .K = 8, .k = 5, .lengths = {90, 71, 3, 0}};
  Tensor q = normal({4, 2, 90, 8}, 1), k = normal({4, 2, 90, 8}, 2);
  Tensor estimate = uniform({4, 2, 90, 8}, 3, 0, 1);
  auto part = [&](int64_t first, int64_t count) {
    std::vector<int64_t> lengths(m.lengths.begin() + first, m.lengths.begin() + first + count);
    Visibility visible{true, Tensor::from(lengths, {count})};
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
    for (size_t way = 0; way < recall::kWays; ++way) {
      CHECK(sum.sums[way][h] == doctest::Approx(whole.sums[way][h]));
    }
    CHECK(sum.mean(recall::kMask, int64_t(h)) ==
          doctest::Approx(whole.sums[recall::kMask][h] / double(whole.rows)));
  }
  for (int n : {1, 2, 3}) {
    Threads set(n);
    distill::Recall again = part(0, 4);
    CHECK(again.sums == whole.sums);
  }
  distill::Recall other;
  for (auto& way : other.sums) way = {1, 2, 3};
  CHECK_THROWS_AS(sum += other, Error);
}

}  // namespace brine::test
