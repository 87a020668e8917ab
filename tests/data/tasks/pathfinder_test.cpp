// Pathfinder: the class by flood fill, what an image consists of, what does not tell the class.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "data/codec/sha256.h"
#include "data/tasks/lra/pathfinder.h"
#include "tests/messages.h"
#include "tests/refusals.h"

using namespace brine;
using namespace brine::data;
using test::check_says;
using test::message;

namespace {

constexpr int kSide = 32;
using Labels = std::array<int, kSide * kSide>;

// Numbers the components of lit pixels, where those at most `reach` apart in rows and columns are
// connected, from 1 on; 0: dark.
Labels flood(const PathfinderImage& image, int reach, int least = 1) {
  Labels labels = {};
  int number = 0;
  for (int start = 0; start < kSide * kSide; ++start) {
    if (image.pixels[size_t(start)] < least || labels[size_t(start)]) continue;
    std::vector<int> queue = {start};
    labels[size_t(start)] = ++number;
    while (!queue.empty()) {
      const int at = queue.back();
      queue.pop_back();
      for (int other = 0; other < kSide * kSide; ++other) {
        const int rows = std::abs(other / kSide - at / kSide);
        const int columns = std::abs(other % kSide - at % kSide);
        if (std::max(rows, columns) > reach || image.pixels[size_t(other)] < least) continue;
        if (labels[size_t(other)]) continue;
        labels[size_t(other)] = number;
        queue.push_back(other);
      }
    }
  }
  return labels;
}

int components(const Labels& labels) { return *std::max_element(labels.begin(), labels.end()); }

// The centres of the two dots, squares of 255.
std::vector<int> dots_of(const PathfinderImage& image) {
  const Labels labels = flood(image, 1, 255);
  std::vector<int> centres;
  for (int number = 1; number <= components(labels); ++number) {
    int count = 0, rows = 0, columns = 0;
    for (int at = 0; at < kSide * kSide; ++at) {
      if (labels[size_t(at)] != number) continue;
      ++count;
      rows += at / kSide;
      columns += at % kSide;
    }
    CHECK(count == 9);
    centres.push_back(rows / 9 * kSide + columns / 9);
  }
  return centres;
}

double distance_of(const std::vector<int>& dots) {
  return std::hypot(dots[0] / kSide - dots[1] / kSide, dots[0] % kSide - dots[1] % kSide);
}

}  // namespace

TEST_CASE("pathfinder: dots are on one path by flood fill exactly in images of class 1") {
  for (const PathfinderRules& rules :
       {PathfinderRules{}, PathfinderRules{.dashes = 4, .distractors = 3}}) {
    LraDraws draws(1, 0);
    for (int i = 0; i < 150; ++i) {
      const bool connected = i % 2;
      const PathfinderImage image = draw_pathfinder(rules, connected, draws);
      CHECK(image.connected == connected);
      const std::vector<int> dots = dots_of(image);
      REQUIRE(dots.size() == 2);
      const Labels paths = flood(image, 3);
      CHECK((paths[size_t(dots[0])] == paths[size_t(dots[1])]) == connected);
      CHECK(components(paths) == 2 + rules.distractors);
      // Dashes alone: no two of them touch.
      CHECK(components(flood(image, 1)) == 2 * rules.dashes + 2 * rules.distractors);
      for (const uint8_t value : image.pixels) {
        CHECK((value == 0 || value == 255 || (value >= 96 && value <= 223)));
      }
    }
  }
}

TEST_CASE("pathfinder: a scene is of either class, with dots at about the same distance") {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    LraDraws one(seed, 0), other(seed, 0);
    const PathfinderImage separate = draw_pathfinder({}, false, one);
    const PathfinderImage joined = draw_pathfinder({}, true, other);
    const std::vector<int> dots[] = {dots_of(separate), dots_of(joined)};
    CHECK(std::abs(distance_of(dots[0]) - distance_of(dots[1])) <= 1.5);
    // Below the dots the images are the same.
    for (int at = 0; at < kSide * kSide; ++at) {
      const uint8_t a = separate.pixels[size_t(at)], b = joined.pixels[size_t(at)];
      if (a != 255 && b != 255) CHECK(a == b);
    }
  }
}

TEST_CASE("pathfinder: images are a function of the seed and the stream, and differ") {
  auto bytes_of = [](uint64_t seed, uint64_t stream) {
    LraDraws draws(seed, stream);
    std::string bytes;
    std::set<std::string> all;
    for (int i = 0; i < 20; ++i) {
      const PathfinderImage image = draw_pathfinder({}, i % 2, draws);
      const std::string one(image.pixels.begin(), image.pixels.end());
      CHECK(all.insert(one).second);
      bytes += one;
    }
    return bytes;
  };
  CHECK(bytes_of(1, 0) == bytes_of(1, 0));
  CHECK(bytes_of(1, 0) != bytes_of(2, 0));
  CHECK(bytes_of(1, 0) != bytes_of(1, 1));
  CHECK(sha256_hex(bytes_of(1, 0)) ==
        "12d53467c7c5e5e906f70c3119608367d4236f849994517c54fce85759ec5af9");
}

TEST_CASE("pathfinder: paths that do not fit are an error") {
  LraDraws draws(1, 0);
  check_says(message([&] { draw_pathfinder({.dashes = 10, .distractors = 8}, true, draws); }),
             {"pathfinder", "10 dashes", "8 distractors", "32 x 32"});
  check_says(message([&] { draw_pathfinder({.dashes = 1}, true, draws); }), {"1 dashes"});
}
