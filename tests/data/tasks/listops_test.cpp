// ListOps: values against an evaluator that rewrites text, which expressions are drawn, errors.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "data/codec/checksums.h"
#include "data/tasks/lra/listops.h"
#include "tests/messages.h"
#include "tests/refusals.h"

using namespace brine;
using namespace brine::data;
using namespace brine::test;

namespace {

// The value by rewriting: the last opening bracket begins a list without lists in it, which is
// replaced by its value until only a digit is left.
int rewritten_value(std::string text) {
  for (size_t open = text.rfind('['); open != std::string::npos; open = text.rfind('[')) {
    const size_t close = text.find(']', open);
    std::istringstream words(text.substr(open + 1, close - open - 1));
    std::string op;
    words >> op;
    int counts[10] = {}, total = 0, sum = 0, smallest = 9, largest = 0;
    for (int digit; words >> digit; ++total) {
      ++counts[digit];
      sum += digit;
      smallest = std::min(smallest, digit);
      largest = std::max(largest, digit);
    }
    // The digit below which fewer than half of the arguments are, from both sides.
    int low = 0, high = 9;
    for (int below = counts[0]; 2 * below < total; below += counts[++low]) {
    }
    for (int above = counts[9]; 2 * above < total; above += counts[--high]) {
    }
    int value = sum % 10;
    if (op == "MIN") value = smallest;
    if (op == "MAX") value = largest;
    if (op == "MED") value = (low + high) / 2;
    text.replace(open, close + 1 - open, std::to_string(value));
  }
  return std::stoi(text);
}

struct Tree {
  int operators[4] = {}, digits[10] = {};
  int lists = 0, depth = 0;                // nested lists
  std::vector<int> arguments;              // of each list
  int root_arguments = 0, root_lists = 0;  // the root's, and how many of them are lists
};

Tree tree_of(const std::string& expression) {
  Tree tree;
  std::vector<int> open;
  std::istringstream words(expression);
  for (std::string word; words >> word;) {
    if (word == "]") {
      tree.arguments.push_back(open.back());
      if (open.size() == 1) tree.root_arguments = open.back();
      open.pop_back();
      continue;
    }
    if (!open.empty()) ++open.back();
    if (word[0] == '[') {
      tree.root_lists += open.size() == 1;
      ++tree.lists;
      const std::string names[] = {"[MIN", "[MAX", "[MED", "[SM"};
      ++tree.operators[std::find(names, names + 4, word) - names];
      open.push_back(0);
      tree.depth = std::max(tree.depth, int(open.size()));
    } else {
      ++tree.digits[std::stoi(word)];
    }
  }
  CHECK(open.empty());
  return tree;
}

int64_t count_words(const std::string& text) {
  return 1 + std::count(text.begin(), text.end(), ' ');
}

}  // namespace

TEST_CASE("listops: values of lists, the median of an even number is rounded down") {
  CHECK(listops_value("[MAX 2 9 [MIN 4 7 ] 0 ]") == 9);
  CHECK(listops_value("[MIN 2 9 [MAX 4 7 ] 5 ]") == 2);
  CHECK(listops_value("[MED 9 1 5 ]") == 5);
  CHECK(listops_value("[MED 9 1 4 5 ]") == 4);
  CHECK(listops_value("[MED 0 9 ]") == 4);
  CHECK(listops_value("[SM 9 9 [MED 7 3 8 ] 8 ]") == 3);
  CHECK(listops_value("[SM 7 ]") == 7);
  // As in the files of Long Range Arena.
  CHECK(listops_value("( ( ( [MAX 2 ) 9 ) ] )") == 9);
}

TEST_CASE("listops: a malformed expression is an error that says why") {
  auto refused = [](const char* text, const char* why) {
    INFO(text);
    CHECK_REFUSES(listops_value(text), "listops", why);
  };
  refused("", "empty");
  refused("[MAX 2 9", "not closed");
  refused("[MAX 2 ] ]", "closing bracket");
  refused("[MAX ]", "without arguments");
  refused("[MAX 2 ] 3", "after the end");
  refused("3 [MAX 2 ]", "after the end");
  refused("[AVG 2 ]", "unknown token '[AVG'");
  refused("[MAX 12 ]", "unknown token '12'");
}

TEST_CASE("listops: drawn expressions have the value that rewriting gives, and allowed lengths") {
  const ListOpsRules rules;
  ListOpsGenerator generator(rules);
  LraDraws draws(1, 0);
  int64_t shortest = 1 << 20, longest = 0;
  std::map<int64_t, int> values;
  for (int i = 0; i < 300; ++i) {
    const ListOpsExample e = generator.next(draws);
    CHECK(e.value == rewritten_value(e.expression));
    CHECK(e.length == count_words(e.expression));
    CHECK(e.length >= 500);
    CHECK(e.length <= 2000);
    const Tree tree = tree_of(e.expression);
    CHECK(tree.depth <= 9);
    CHECK(*std::ranges::min_element(tree.arguments) >= 2);
    CHECK(*std::ranges::max_element(tree.arguments) <= 10);
    shortest = std::min(shortest, e.length);
    longest = std::max(longest, e.length);
    ++values[e.value];
  }
  CHECK(shortest < 550);
  CHECK(longest > 1700);
  CHECK(values.size() == 10);
}

TEST_CASE("listops: the shares of operators, digits, lists and numbers of arguments") {
  const ListOpsRules rules{.max_depth = 4, .max_args = 6, .min_length = 4, .max_length = 4096};
  LraDraws draws(7, 3);
  const int n = 4000;
  double operators[4] = {}, digits[10] = {}, lists = 0, digit_count = 0, root_arguments = 0;
  double root_lists = 0, arguments[7] = {};
  int deepest = 0;
  for (int i = 0; i < n; ++i) {
    // A generator leaves out what it gave before, which is short more often than long.
    const Tree tree = tree_of(ListOpsGenerator(rules).next(draws).expression);
    for (int op = 0; op < 4; ++op) operators[op] += tree.operators[op];
    for (int digit = 0; digit < 10; ++digit) digits[digit] += tree.digits[digit];
    for (const int digit : tree.digits) digit_count += digit;
    for (const int count : tree.arguments) ++arguments[count];
    lists += tree.lists;
    root_arguments += tree.root_arguments;
    root_lists += tree.root_lists;
    deepest = std::max(deepest, tree.depth);
  }
  CHECK(deepest == 3);  // and the digits of the third list have depth 4
  // Four standard deviations.
  auto check_share = [](double share, double want, double count) {
    INFO(share << ", wanted " << want);
    CHECK(std::abs(share - want) < 4 * std::sqrt(want * (1 - want) / count));
  };
  for (const double count : operators) check_share(count / lists, 0.25, lists);
  for (const double count : digits) check_share(count / digit_count, 0.1, digit_count);
  check_share(root_lists / root_arguments, 0.25, root_arguments);
  for (int count = 2; count <= 6; ++count) check_share(arguments[count] / lists, 0.2, lists);
}

TEST_CASE("listops: expressions are a function of the seed and the stream") {
  auto text_of = [](uint64_t seed, uint64_t stream) {
    ListOpsGenerator generator({.min_length = 8, .max_length = 64});
    LraDraws draws(seed, stream);
    std::string text;
    for (int i = 0; i < 50; ++i) text += generator.next(draws).expression + "\n";
    return text;
  };
  CHECK(text_of(1, 0) == text_of(1, 0));
  CHECK(text_of(1, 0) != text_of(2, 0));
  CHECK(text_of(1, 0) != text_of(1, 1));
  CHECK(sha256_hex(text_of(1, 0)) ==
        "a0ee057244e730f6b7542a8ec3403575e110b4e4e9b1ecb5842069ab7ec97b98");
}

TEST_CASE("listops: no expression comes twice, and a used-up supply is an error") {
  // 4 operators, 10 x 10 digits.
  ListOpsGenerator generator({.max_depth = 2, .max_args = 2, .min_length = 4, .max_length = 9});
  LraDraws draws(1, 0);
  std::set<std::string> all;
  for (int i = 0; i < 400; ++i) all.insert(generator.next(draws).expression);
  CHECK(all.size() == 400);
  CHECK_REFUSES(generator.next(draws), "listops", "no new expression", "4 to 9 tokens", "400");
}

TEST_CASE("listops: settings that no expression can have are refused") {
  auto refused = [](const ListOpsRules& rules, std::initializer_list<std::string> parts) {
    check_says(message([&] { ListOpsGenerator generator(rules); }), parts);
  };
  refused({.min_length = 90, .max_length = 80}, {"min_length 90", "max_length 80"});
  // Root with 3 lists of 3 digits: 2 + 3 x 5.
  refused({.max_depth = 3, .max_args = 3, .min_length = 18, .max_length = 20},
          {"depth 3", "3 arguments", "18 tokens", "17"});
  refused({.max_depth = 1}, {"max_depth 1"});
  refused({.max_args = 1}, {"max_args 1"});
  ListOpsGenerator possible(
      {.max_depth = 3, .max_args = 3, .min_length = 17, .max_length = 17, .list_probability = 0.9});
  LraDraws draws(1, 0);
  CHECK(possible.next(draws).length == 17);
}
