// Divided work: results in order, one error for all ranks.
#include "tensor/comm/shared_work.h"

#include <doctest/doctest.h>

#include <atomic>

#include "tensor/comm/bytes.h"
#include "tests/tensor/comm/thread_ranks.h"

namespace brine::test {
namespace {

TEST_CASE("shared work: items are done once, and added everywhere in their order") {
  for (const int size : {1, 2, 3, 5}) {
    for (const int64_t count : {0, 1, 4, 9}) {
      std::vector<std::string> sums(static_cast<size_t>(size));
      std::atomic<int64_t> done = 0;
      on_ranks(size, [&](Communicator& ranks) {
        divide_work(
            ranks, "letters", count,
            [&](int64_t n) {
              CHECK(n % ranks.size() == ranks.rank());
              ++done;
              return std::string(size_t(n), char('a' + n));
            },
            [&](int64_t n, const std::string& part) {
              sums[size_t(ranks.rank())] += join(n, part, " ");
            });
      });
      std::string expected;
      for (int64_t n = 0; n < count; ++n)
        expected += join(n, std::string(size_t(n), char('a' + n)), " ");
      CHECK(done == count);
      for (const std::string& sum : sums) CHECK(sum == expected);
    }
  }
}

// How work fails on three ranks: the text of each.
std::vector<std::string> failures(const std::function<void(Communicator&)>& work) {
  std::vector<std::string> texts(3);
  on_ranks(3, [&](Communicator& ranks) {
    try {
      work(ranks);
    } catch (const SharedError& e) {
      texts[size_t(ranks.rank())] = e.what();
    }
  });
  return texts;
}

TEST_CASE("shared work: an error of one rank is the same error of all") {
  const std::vector<std::string> one(3, "rank 1: disk full"), all(3, "no such file");
  CHECK(failures([](Communicator& ranks) {
          do_work(ranks, "work", [&] { check(ranks.rank() != 1, "disk full"); });
        }) == one);
  CHECK(failures([](Communicator& ranks) {
          do_work(ranks, "work", [] { throw Error("no such file"); });
        }) == all);
  // While the others are inside of the same work, in a separate exchange.
  CHECK(failures([](Communicator& ranks) {
          do_work(ranks, "outer", [&] {
            check(ranks.rank() != 1, "disk full");
            gather_work(ranks, "inner", [] { return std::string("good"); });
          });
        }) == one);
  CHECK(failures([](Communicator& ranks) {
          do_work_of_first(ranks, "work", [&] { check(ranks.rank() == 1, "disk full"); });
        }) == std::vector<std::string>(3, "rank 0: disk full"));
}

TEST_CASE("shared work: ranks that divide different numbers of items are told so") {
  std::vector<std::string> texts(2);
  on_ranks(2, [&](Communicator& ranks) {
    try {
      divide_work(
          ranks, "windows", 3 + ranks.rank(), [](int64_t) { return ""; },
          [](int64_t, const std::string&) {});
    } catch (const Error& e) {
      texts[size_t(ranks.rank())] = e.what();
    }
  });
  CHECK(texts[0] == "windows: rank 1 has 4 parts, rank 0 3");
  CHECK(texts[1] == "windows: rank 0 has 3 parts, rank 1 4");
}

TEST_CASE("bytes: a message gives back what was written, and no more") {
  ByteWriter out;
  out.text("");
  out.list(std::vector<float>{1, -0.0f});
  out.list(std::vector<double>{});
  out.number(int64_t(-7));
  ByteReader in(out.bytes());
  CHECK(in.text().empty());
  CHECK(in.list<float>() == std::vector<float>{1, -0.0f});
  CHECK(in.list<double>().empty());
  CHECK(in.number<int64_t>() == -7);
  CHECK(in.done());
  CHECK_THROWS_AS(in.number<char>(), Error);
  const std::string cut = out.bytes().substr(0, 12);
  ByteReader shorter(cut);
  shorter.text();
  CHECK_THROWS_AS(shorter.list<float>(), Error);
}

}  // namespace
}  // namespace brine::test
