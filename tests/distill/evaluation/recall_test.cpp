// Mask recall of several batches.
#include "distill/evaluation/recall.h"

#include "tests/sparse_oracle.h"

namespace brine::test {

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
