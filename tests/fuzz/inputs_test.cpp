// Every seed and every past find through the reader that it is for.
#include <doctest/doctest.h>

#include "data/io/file_io.h"
#include "tests/fuzz/targets.h"
#include "tests/paths.h"
#include "tests/scratch.h"

namespace brine::fuzz {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> inputs(const std::string& kind, const std::string& target) {
  std::vector<fs::path> all;
  fs::path folder = fs::path(brine::test::source_dir()) / "tests/fuzz" / kind / target;
  if (!fs::exists(folder)) return all;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    all.push_back(entry.path());
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace

TEST_CASE("fuzz: seeds and past finds are read or refused in one line that names a file") {
  test::Scratch dir;
  for (const FuzzTarget& target : targets()) {
    CAPTURE(target.name);
    std::vector<fs::path> seeds = inputs("seeds", target.name);
    CHECK_FALSE(seeds.empty());
    int taken = 0;
    for (const fs::path& seed : seeds) {
      std::string said;
      CAPTURE(seed);
      CHECK_NOTHROW(said = feed(target, dir.path(), data::read_file(seed)));
      taken += said.empty();
      // Seeds with such a name are valid inputs: a fuzzer that starts with them reaches all code.
      CHECK_MESSAGE(said.empty() == seed.filename().string().starts_with("good"), said);
    }
    CHECK(taken > 0);
    for (const fs::path& find : inputs("finds", target.name)) {
      CAPTURE(find);
      CHECK_NOTHROW(feed(target, dir.path(), data::read_file(find)));
    }
  }
}

TEST_CASE("fuzz: a reader that breaks the rules is detected") {
  test::Scratch dir;
  FuzzTarget long_winded{
      "", [](const fs::path& d, std::string_view) { throw Error(d.string() + ": two\nlines"); }};
  FuzzTarget nameless{"", [](const fs::path&, std::string_view) { throw Error("no"); }};
  FuzzTarget fine{"",
                  [](const fs::path& d, std::string_view) { throw Error(d.string() + ": no"); }};
  CHECK_THROWS_AS(feed(long_winded, dir.path(), ""), Find);
  CHECK_THROWS_AS(feed(nameless, dir.path(), ""), Find);
  CHECK(feed(fine, dir.path(), "") == dir.path().string() + ": no");
}

}  // namespace brine::fuzz
