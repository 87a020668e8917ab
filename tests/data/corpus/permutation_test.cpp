// The order of an epoch: a permutation, the same for the same numbers, uniform.
#include "data/corpus/permutation.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "tensor/base/error.h"

using namespace brine::data;

TEST_CASE("permutation: every index once") {
  for (int64_t n : {0, 1, 2, 3, 17, 100, 1000}) {
    std::vector<int64_t> order = permutation(n, 5, 2);
    REQUIRE(int64_t(order.size()) == n);
    std::sort(order.begin(), order.end());
    for (int64_t i = 0; i < n; ++i) CHECK(order[size_t(i)] == i);
  }
  CHECK_THROWS_WITH_AS(permutation(-1, 0, 0), doctest::Contains("n = -1"), brine::Error);
}

TEST_CASE("permutation: a function of n, seed and epoch, and of each of them") {
  const auto order = permutation(100, 5, 2);
  CHECK(order == permutation(100, 5, 2));
  CHECK(order != permutation(100, 6, 2));
  CHECK(order != permutation(100, 5, 3));
  CHECK(order != permutation(100, 5 | uint64_t(1) << 40, 2));
  // Fixed permanently: a run resumed with a later version must see the same order.
  CHECK(permutation(8, 1234, 1) == std::vector<int64_t>{2, 1, 6, 5, 4, 7, 0, 3});
}

TEST_CASE("permutation: every order of four is equally likely") {
  int count[24] = {};
  const int draws = 24000;
  for (int epoch = 0; epoch < draws; ++epoch) {
    const auto order = permutation(4, 9, uint64_t(epoch));
    int rank = 0;
    for (int i = 0; i < 4; ++i) {
      const auto smaller = std::count_if(order.begin() + i + 1, order.end(),
                                         [&](int64_t later) { return later < order[size_t(i)]; });
      rank = rank * (4 - i) + int(smaller);
    }
    ++count[rank];
  }
  double chi_squared = 0;  // 23 degrees of freedom: above 50 once in a thousand seeds
  for (int seen : count) chi_squared += (seen - 1000.0) * (seen - 1000.0) / 1000;
  CHECK(chi_squared < 50);
  CHECK(chi_squared > 5);
}

TEST_CASE("permutation: item by item, every index once, another order each epoch") {
  for (int64_t n : {1, 2, 3, 4, 5, 100, 1000, 4096, 4097}) {
    std::vector<int64_t> order, other;
    for (int64_t i = 0; i < n; ++i) {
      order.push_back(permuted(i, n, 5, 2));
      other.push_back(permuted(i, n, 5, 3));
    }
    if (n >= 100) {
      CHECK(order != other);
      int64_t still = 0, follows = 0;  // of a random order one each is expected
      for (int64_t i = 0; i < n; ++i) {
        still += order[size_t(i)] == i;
        follows += i > 0 && order[size_t(i)] == order[size_t(i - 1)] + 1;
      }
      CHECK(still < 8);
      CHECK(follows < 8);
    }
    std::sort(order.begin(), order.end());
    for (int64_t i = 0; i < n; ++i) REQUIRE(order[size_t(i)] == i);
  }
  const int64_t large = int64_t(1) << 40;
  CHECK(permuted(0, large, 5, 2) != permuted(1, large, 5, 2));
  CHECK(permuted(large - 1, large, 5, 2) < large);
  CHECK_THROWS_WITH_AS(permuted(3, 3, 0, 0), doctest::Contains("item 3 of 3"), brine::Error);
}
