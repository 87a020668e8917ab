// Windows of a corpus: order, restriction to a dump's; targets from a position
// on.
#include "distill/batches/batch.h"

#include <algorithm>
#include <numeric>

#include "data/codec/checksums.h"
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

TEST_CASE("windows: of a corpus too large to list their order, still every one once an epoch") {
  const int64_t count = 1000, batch = 7;
  const auto source = [&](int64_t max_listed) {
    return WindowSource(counting(2 * count), 2, 5, {}, max_listed);
  };
  WindowSource large = source(count - 1), listed = source(count);
  std::vector<int64_t> seen;
  for (int64_t n = 0; n < 3 * count / batch + 1; ++n) {
    const std::vector<int64_t> windows = large.windows_of(n, batch);
    seen.insert(seen.end(), windows.begin(), windows.end());
    // A resumed run starts anywhere with a new source.
    if (n % 50 == 17) {
      CHECK(source(count - 1).windows_of(n, batch) == windows);
      CHECK(large.clone()->windows_of(n, batch) == windows);
      CHECK(large.batch(n, batch).windows == windows);
      CHECK(listed.windows_of(n, batch) != windows);
    }
  }
  std::vector<int64_t> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::vector<int64_t>> epochs;
  for (int64_t e = 0; e < 3; ++e) {
    epochs.emplace_back(seen.begin() + e * count, seen.begin() + (e + 1) * count);
    std::vector<int64_t> sorted = epochs.back();
    std::sort(sorted.begin(), sorted.end());
    CHECK(sorted == all);
  }
  CHECK(epochs[0] != epochs[1]);
  CHECK(epochs[1] != epochs[2]);
  // Fixed permanently, as is the listed order: a later version resumes a run with the same windows.
  CHECK(data::sha256_hex(std::string(reinterpret_cast<const char*>(seen.data()), 3 * count * 8)) ==
        "75be37aea942c63a9b1f9c0767d0be5b4e914bf4e78136b32db34398c56b5176");
}

TEST_CASE("windows: the order of a corpus of more than 2^20 of them needs no list, and is fixed") {
  // A source of 2^33 tokens that stores none of them.
  struct Endless : data::TokenSource {
    int64_t size() const override { return int64_t(1) << 33; }
    void read(int64_t from, std::span<int32_t> out) const override {
      for (int32_t& token : out) token = int32_t(from++ & 0x7fff);
    }
  };
  WindowSource source(std::make_shared<Endless>(), 32, 7);
  REQUIRE(source.size() == int64_t(1) << 28);
  const Batch b = source.batch(1000000, 4);
  CHECK(b.windows == std::vector<int64_t>{263003247, 170380356, 174871404, 240433202});
  for (int64_t i = 0; i < 4; ++i) CHECK(row(b, i)[0] == double(32 * b.windows[size_t(i)] & 0x7fff));
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
