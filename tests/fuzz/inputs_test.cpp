// Every seed and every past find through the reader that it is for.
#include <doctest/doctest.h>

#include <random>

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

TEST_CASE("fuzz: valid inputs that were cut or damaged are read or refused in one such line") {
  test::Scratch dir;
  std::mt19937 draw(17);
  for (const FuzzTarget& target : targets()) {
    CAPTURE(target.name);
    // A cut of text may be valid; of these nothing is.
    const bool whole = target.name == "safetensors" || target.name == "gguf" ||
                       target.name == "torch" || target.name == "pickle";
    int refused = 0, damages = 0;
    for (const fs::path& seed : inputs("seeds", target.name)) {
      if (!seed.filename().string().starts_with("good")) continue;
      CAPTURE(seed);
      const std::string good = data::read_file(seed);
      if (good.empty()) continue;
      for (size_t size = 0; size < good.size(); size += 1 + good.size() / 400) {
        std::string said;
        CHECK_NOTHROW(said = feed(target, dir.path(), good.substr(0, size)));
        CHECK((!whole || !said.empty()));
      }
      for (int i = 0; i < 200; ++i, ++damages) {
        std::string bad = good;
        for (int n = 0; n <= i % 3; ++n)
          bad[draw() % bad.size()] = i % 2 ? "\"{}[]:,0-a\\\xff"[draw() % 12] : char(draw());
        CHECK_NOTHROW(refused += !feed(target, dir.path(), bad).empty());
      }
    }
    CHECK(refused * 20 > damages);
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
