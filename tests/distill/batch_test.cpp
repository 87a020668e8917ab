// Windows of a corpus: order, restriction to a dump's, copies of a text; targets from a position
// on.
#include "distill/batch.h"

#include <algorithm>
#include <numeric>

#include "tests/distill/setup.h"

namespace brine::test {
namespace {

std::vector<int32_t> counting(int64_t n) {
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

std::vector<double> row(const Batch& batch, int64_t i) {
  return batch.ids.slice(0, i, 1).to_vector();
}

}  // namespace

TEST_CASE("windows: every one once an epoch, in another order each epoch, as batches run on") {
  WindowSource source(counting(4 * 7 + 3), 4, 5);  // three tokens fill no window
  REQUIRE(source.size() == 7);
  std::vector<int64_t> seen;
  for (int64_t n = 0; n < 7; ++n) {
    Batch b = source.batch(n, 2);
    CHECK(b.tokens == 8);
    CHECK(b.windows == WindowSource(counting(31), 4, 5).windows_of(n, 2));
    for (int64_t i = 0; i < 2; ++i) {
      seen.push_back(b.windows[size_t(i)]);
      const double first = double(4 * seen.back());
      CHECK(row(b, i) == std::vector<double>{first, first + 1, first + 2, first + 3});
    }
  }
  std::vector<int64_t> one(seen.begin(), seen.begin() + 7), two(seen.begin() + 7, seen.end());
  CHECK(one != two);
  std::sort(one.begin(), one.end());
  std::sort(two.begin(), two.end());
  CHECK(one == std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6});
  CHECK(two == one);
}

TEST_CASE("windows: only those of a dump, by their numbers in the corpus") {
  WindowSource source(counting(40), 4, 5, {8, 2, 5});
  CHECK(source.size() == 3);
  CHECK(source.in_order(0, 9).windows == std::vector<int64_t>{8, 2, 5});
  CHECK(row(source.in_order(1, 1), 0) == std::vector<double>{8, 9, 10, 11});
  CHECK_THROWS_WITH_AS(WindowSource(counting(40), 4, 5, {10}),
                       "windows: window 10 of 10 does not exist", Error);
  CHECK_THROWS_WITH_AS(source.in_order(3, 1), "windows: no window from 3 on", Error);
}

TEST_CASE("windows: copies repeat a shorter piece of the text within a window") {
  WindowSource source(counting(26), 12, 5, {}, 3);
  REQUIRE(source.size() == 6);  // of four tokens of the text each
  Batch b = source.in_order(0, 6);
  CHECK(b.ids.shape() == Shape{6, 12});
  CHECK(b.tokens == 72);
  CHECK(row(b, 0) == std::vector<double>{0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3});
  CHECK(row(b, 5) == std::vector<double>{20, 21, 22, 23, 20, 21, 22, 23, 20, 21, 22, 23});
  CHECK_THROWS_WITH_AS(WindowSource(counting(40), 12, 5, {}, 5),
                       "windows: 5 copies do not divide a window of 12 tokens", Error);
  CHECK_THROWS_WITH_AS(WindowSource(counting(3), 12, 5, {}, 3), doctest::Contains("3 tokens"),
                       Error);
}

TEST_CASE("loss_from: training and evaluation count the same targets, from that position on") {
  Pair pair({}, "dense");
  WindowSource source = pair.source(0);
  std::vector<double> known;
  for (int64_t from : {0, 1, 9, 15}) {
    INFO("from " << from);
    Perplexity p = evaluate(*pair.student, source, {.batch_size = 7, .loss_from = from});
    CHECK(p.tokens == 7 * (16 - std::max<int64_t>(from, 1)));
    pair.store->zero_gradients();
    LossTerms terms;
    Objective(*pair.student, nullptr, task_only())
        .run(source.in_order(0, 7), {.loss_from = from}, terms);
    CHECK(terms.at("task_nll") == doctest::Approx(p.nll).epsilon(1e-5));
    known.push_back(p.nll);
  }
  CHECK(known[0] == known[1]);  // the first token has no prediction either way
  CHECK(known[2] != known[1]);
  CHECK(known[3] != known[2]);
  CHECK_THROWS_WITH_AS(evaluate(*pair.student, source, {.loss_from = 16}),
                       "evaluate: no token is predicted", Error);
}

}  // namespace brine::test
