// The estimate of a table's columns in one pass against the ops of its parts.
#include "autograd/ops.h"
#include "tests/estimator_oracle.h"
#include "tests/gradcheck.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

// The output of f(); f() must give the same bits for 1, 2 and 3 threads.
Tensor steady(const std::function<Tensor()>& f) {
  Tensor first = f();
  for (int n : {1, 2, 3}) {
    Threads set(n);
    CHECK(same_bits(f(), first));
  }
  return first;
}

struct TableCase {
  int64_t B, H, G, T, d, m, K, units;
  std::vector<int64_t> lengths = {};
  bool causal = true;
  double floor = 0;
};

void check_table(const TableCase& s, Dtype type) {
  const Visibility visible{.causal = s.causal, .lengths = lengths_of(s.lengths)};
  const Tensor bias = normal({s.H, s.K}, 1, type), gain = uniform({s.H}, 2, 0.5, 1.5, type);
  const PriorInputs prior{gain, uniform({s.B, s.H, s.T, s.m}, 3, 0.1, 1, type),
                          uniform({s.B, s.G, s.T, s.m}, 4, 0.1, 1, type)};
  const PriorInputs means{normal({s.H}, 7, type), normal({s.B, s.H, s.T, s.d}, 5, type),
                          normal({s.B, s.G, s.T, s.d}, 6, type)};
  const ColumnGrid grid(1, s.units);
  const Tensor scores = performer_prior(rows_from_table(bias, s.B, s.T), gain, prior.q, prior.k,
                                        visible, grid, s.floor);
  const Tensor wanted =
      column_softmax(pooled_prior(scores, means.gain, means.q, means.k, visible, grid), visible);
  steady([&] {
    const Tensor y = table_estimate(bias, prior, means, visible, s.units, s.floor);
    CHECK(close(y, wanted, type == Dtype::f64 ? 1e-14 : 1e-6, 0,
                join("T=", s.T, " K=", s.K, " units=", s.units)));
    return y;
  });
  if (!s.causal || !s.lengths.empty()) return;
  // Rows that see keys before them have the bits of the whole.
  NoGrad off;
  const Tensor whole = table_estimate(bias, prior, means, visible, s.units, s.floor);
  for (const int64_t first : {int64_t(1), s.T / 3, s.T - 1}) {
    if (first < 1 || first >= s.T) continue;
    auto rows = [&](const Tensor& x) { return x.slice(2, first, s.T - first); };
    const Tensor y =
        table_estimate(bias, {gain, rows(prior.q), prior.k}, {means.gain, rows(means.q), means.k},
                       {.first = first}, s.units, s.floor);
    CHECK(same_bits(y, rows(whole).contiguous()));
  }
}

}  // namespace

TEST_CASE("table_estimate: the prior, the mean keys and softmax") {
  for (Dtype type : {Dtype::f32, Dtype::f64}) {
    for (int64_t T : {1, 3, 17, 65}) check_table({1, 2, 2, T, 4, 5, 8, 0}, type);
    check_table({2, 4, 2, 131, 20, 16, 20, 2, {131, 70}}, type);
    check_table({2, 6, 2, 420, 64, 64, 40, 2, {420, 0}}, type);
    check_table({1, 2, 1, 300, 64, 64, 32, 4, {}, true, 1e-2}, type);
    check_table({1, 9, 3, 1200, 64, 64, 256, 4, {}, true, 1e-2}, type);
    check_table({2, 2, 1, 60, 9, 3, 17, 3, {60, 21}, false, 0.04}, type);
    check_table({1, 1, 1, 33, 5, 4, 8, 1, {}, true, 0}, type);
  }
}

TEST_CASE("table_estimate: what does not fit is refused") {
  const PriorInputs means{normal({4}, 4), normal({1, 4, 6, 2}, 1), normal({1, 2, 6, 2}, 2)};
  const PriorInputs prior{means.gain, normal({1, 4, 6, 3}, 1), normal({1, 2, 6, 3}, 2)};
  const Tensor bias = normal({4, 5}, 3);
  CHECK_REFUSES(table_estimate(normal({3, 5}, 3), prior, means, {}), "table_estimate", "[4, K]",
                "[3, 5]");
  CHECK_REFUSES(table_estimate(bias, {normal({3}, 4), prior.q, prior.k}, means, {}),
                "table_estimate", "gains", "[4]", "[3]");
  CHECK_REFUSES(table_estimate(bias, {means.gain, normal({1, 4, 7, 3}, 1), normal({1, 2, 7, 3}, 2)},
                               means, {}),
                "table_estimate", "[1, 4, 7, 3]", "[1, 4, 6, 2]");
  CHECK_REFUSES(table_estimate(bias, prior, means, {}, 0, 2), "table_estimate", "floor", "2");
  CHECK_REFUSES(table_estimate(bias, prior, means, {.first = 2}), "table_estimate",
                "rows from 2 on");
}

}  // namespace brine::test
