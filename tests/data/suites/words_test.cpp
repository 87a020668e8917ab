// Words of prompts: different ones, of the asked form, drawn evenly.
#include "data/suites/words.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

namespace brine::test {
namespace {

bool all_different(const std::vector<std::string>& items) {
  return std::set<std::string>(items.begin(), items.end()).size() == items.size();
}

TEST_CASE("words: every draw gives different items of the asked form") {
  data::Draws draws(3, "words");
  const auto keys = data::draw_keys(draws, 200), codes = data::draw_codes(draws, 300, 5, 'A');
  const auto numbers = data::draw_numbers(draws, 300, 7);
  CHECK(keys.size() == 200);
  CHECK(all_different(keys));
  CHECK(all_different(codes));
  CHECK(all_different(numbers));
  for (const std::string& key : keys) CHECK(std::count(key.begin(), key.end(), '-') == 1);
  for (const std::string& code : codes) {
    CHECK(code.size() == 5);
    CHECK(std::all_of(code.begin(), code.end(), [](char c) { return c >= 'A' && c <= 'Z'; }));
  }
  for (const std::string& number : numbers) {
    CHECK(number.size() == 7);
    CHECK(number[0] != '0');
  }
}

TEST_CASE("words: more words than the list has are made of syllables") {
  data::Draws draws(3, "words");
  const auto few = data::draw_words(draws, 50);
  const auto many = data::draw_words(draws, 2000);
  CHECK(few.size() == 50);
  CHECK(many.size() == 2000);
  CHECK(all_different(few));
  CHECK(all_different(many));
  for (const std::string& word : many) CHECK(word.size() >= 2);
}

TEST_CASE("draws: numbers below n are evenly spread, and names give other ones") {
  data::Draws draws(1, "a"), other(1, "b");
  std::vector<int> counts(10);
  int equal = 0;
  for (int i = 0; i < 10000; ++i) {
    const uint64_t x = draws.below(10);
    REQUIRE(x < 10);
    ++counts[x];
    equal += other.below(10) == x;
  }
  // 1000 +- 30: five deviations.
  for (int count : counts) CHECK(std::abs(count - 1000) < 150);
  CHECK(std::abs(equal - 1000) < 150);
  std::vector<int> order = {0, 1, 2, 3, 4, 5, 6, 7};
  draws.shuffle(order);
  CHECK(order != std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7});
  std::sort(order.begin(), order.end());
  CHECK(order == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7});
}

TEST_CASE("words: items are listed as in a sentence") {
  CHECK(data::enumerated({"a"}) == "a");
  CHECK(data::enumerated({"a", "b"}) == "a and b");
  CHECK(data::enumerated({"a", "b", "c"}) == "a, b, and c");
}

}  // namespace
}  // namespace brine::test
