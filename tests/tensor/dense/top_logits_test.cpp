// The largest logits of each row against a full sort.
#include "tensor/functions/top_logits.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/ops/op_table.h"

using namespace brine;
namespace table = brine::test::table;
using brine::test::normal;

namespace {

// Ids of a row in falling order of its values, of equal ones the smaller id first.
std::vector<int64_t> sorted_ids(const std::vector<double>& x, int64_t row, int64_t V) {
  std::vector<int64_t> id(static_cast<size_t>(V));
  std::iota(id.begin(), id.end(), 0);
  auto value = [&](int64_t i) { return x[size_t(row * V + i)]; };
  std::stable_sort(id.begin(), id.end(), [&](int64_t a, int64_t b) { return value(a) > value(b); });
  return id;
}

}  // namespace

TEST_CASE("top_logits: values, ids and the log-sum-exp of the whole row, with ties") {
  for (auto [R, V] : {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {2, 257}, {4, 1037}}) {
    for (bool ties : {false, true}) {
      Tensor logits = normal({R, V}, 5, Dtype::f32, 0, 3);
      for (int64_t i = 0; ties && i < logits.numel(); ++i) {
        logits.data<float>()[i] = std::round(logits.data<float>()[i]);
      }
      logits.data<float>()[(R - 1) * V] += 300;  // a sum that needs the shift
      const std::vector<double> x = logits.to_vector();
      const std::vector<double> sums = table::log_sums(x, size_t(V));
      for (int64_t n : {int64_t(1), int64_t(64), (V + 1) / 2, V}) {
        if (n > V) continue;
        INFO(join(R, " x ", V, ", n = ", n, ties ? ", ties" : ""));
        const TopLogits top = largest_logits(logits, n);
        const std::vector<double> values = top.values.to_vector(), ids = top.ids.to_vector();
        const std::vector<double> lse = top.lse.to_vector();
        int64_t wrong = 0;
        for (int64_t r = 0; r < R; ++r) {
          const std::vector<int64_t> wanted = sorted_ids(x, r, V);
          for (int64_t i = 0; i < n; ++i) {
            wrong += int64_t(ids[size_t(r * n + i)]) != wanted[size_t(i)];
            wrong += values[size_t(r * n + i)] != x[size_t(r * V + wanted[size_t(i)])];
          }
          CHECK(lse[size_t(r)] == doctest::Approx(sums[size_t(r)]).epsilon(1e-6));
        }
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("top_logits of n = 0 or n >= V are the logits themselves, without ids") {
  const Tensor logits = normal({2, 3, 9}, 1, Dtype::f64);
  for (int64_t n : {0, 9, 10}) {
    const TopLogits all = top_logits(logits, n);
    CHECK_FALSE(all.ids.defined());
    CHECK(all.values.shares_memory(logits));
    CHECK(all.values.shape() == Shape{6, 9});
    CHECK(test::close(all.lse.to_vector(), table::log_sums(logits.to_vector(), 9), 0, 1e-12));
  }
  CHECK(top_logits(logits.to(Dtype::f32), 4).ids.shape() == Shape{6, 4});
}

TEST_CASE("top_logits refuse other types and more logits than there are") {
  CHECK_THROWS_AS(largest_logits(normal({2, 9}, 1, Dtype::f64), 3), Error);
  CHECK_THROWS_WITH(largest_logits(normal({2, 9}, 1), 10), "top_logits: 10 of 9 logits");
  CHECK_THROWS_WITH(largest_logits(normal({2, 9}, 1), 0), "top_logits: 0 of 9 logits");
}
