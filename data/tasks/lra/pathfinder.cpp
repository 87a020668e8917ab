// Drawing the images of Pathfinder. All coordinates are integers, so that images have the same
// bytes everywhere.
#include "data/tasks/lra/pathfinder.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <vector>

#include "tensor/base/error.h"

namespace brine::data {
namespace {

constexpr int64_t kDashSteps = 3, kPeriod = 5;  // a dash and the dark steps after it
constexpr int64_t kUnit = 256;                  // coordinates of a pixel
constexpr int64_t kHeadings = 64;               // directions of a circle
constexpr int64_t kReach = 3;                   // pixels between different paths' lit ones
constexpr int64_t kSelfDistance = 3;            // between dashes of a path that are not neighbours
constexpr int kSceneAttempts = 20'000, kPathAttempts = 40;
constexpr double kSameDistance = 1.5;
constexpr uint8_t kDot = 255;

struct Pixel {
  int64_t x, y;
};

int64_t distance(Pixel a, Pixel b) { return std::max(std::abs(a.x - b.x), std::abs(a.y - b.y)); }

double euclidean(Pixel a, Pixel b) {
  return std::sqrt(double((a.x - b.x) * (a.x - b.x) + (a.y - b.y) * (a.y - b.y)));
}

// kUnit times the cosine of a heading.
int64_t cosine(int64_t heading) {
  static constexpr int64_t kQuarter[] = {256, 255, 251, 245, 237, 226, 213, 198, 181,
                                         162, 142, 121, 98,  74,  50,  25,  0};
  heading = (heading % kHeadings + kHeadings) % kHeadings;
  if (heading > kHeadings / 2) heading = kHeadings - heading;
  return heading <= kHeadings / 4 ? kQuarter[heading] : -kQuarter[kHeadings / 2 - heading];
}

using Dash = std::vector<Pixel>;

struct DashedPath {
  std::vector<Dash> dashes;
  Pixel first() const { return dashes.front().front(); }
  Pixel last() const { return dashes.back().back(); }
};

// One pixel from the border at least, so that a dot fits.
bool inside(Pixel p) {
  return p.x >= 1 && p.y >= 1 && p.x < kImageSide - 1 && p.y < kImageSide - 1;
}

bool too_close(const DashedPath& path) {
  const std::vector<Dash>& all = path.dashes;
  for (size_t i = 2; i < all.size(); ++i) {
    for (size_t j = 0; j + 1 < i; ++j) {
      for (const Pixel a : all[i]) {
        for (const Pixel b : all[j]) {
          if (distance(a, b) < kSelfDistance) return true;
        }
      }
    }
  }
  return false;
}

// A path from a drawn place in a drawn direction; nothing when it leaves the image or crosses
// itself.
std::optional<DashedPath> draw_path(int64_t dashes, LraDraws& draws) {
  DashedPath path;
  int64_t x = draws.below(kImageSide * kUnit), y = draws.below(kImageSide * kUnit);
  int64_t heading = draws.below(kHeadings), turn = 0;
  const int64_t steps = dashes * kPeriod - (kPeriod - kDashSteps);
  for (int64_t step = 0; step < steps; ++step) {
    const Pixel at = {x / kUnit, y / kUnit};
    if (x < 0 || y < 0 || !inside(at)) return {};
    if (step % kPeriod == 0) {
      path.dashes.emplace_back();
      turn = draws.between(-1, 1);
    }
    if (step % kPeriod < kDashSteps) path.dashes.back().push_back(at);
    x += cosine(heading);
    y += cosine(heading - kHeadings / 4);
    heading += turn;
  }
  if (too_close(path)) return {};
  return path;
}

template <class Use>
void around(Pixel p, int64_t radius, const Use& use) {
  for (int64_t y = std::max<int64_t>(p.y - radius, 0); y <= p.y + radius && y < kImageSide; ++y) {
    for (int64_t x = std::max<int64_t>(p.x - radius, 0); x <= p.x + radius && x < kImageSide; ++x) {
      use(size_t(y * kImageSide + x));
    }
  }
}

class Scene {
 public:
  // Both paths have room for a dot at both ends, whether they get one or not: otherwise the room
  // would tell.
  bool place_path(int64_t dashes, bool dots, LraDraws& draws) {
    for (int i = 0; i < kPathAttempts; ++i) {
      std::optional<DashedPath> path = draw_path(dashes, draws);
      if (!path || meets(*path, dots)) continue;
      block(*path, dots);
      paths_.push_back(std::move(*path));
      return true;
    }
    return false;
  }

  // The two dots for the class, when the scene has such ends for both classes.
  std::optional<std::array<Pixel, 2>> dots(bool connected, LraDraws& draws) const {
    const DashedPath& one = paths_[size_t(draws.below(2))];
    const std::array<Pixel, 2> same = {one.first(), one.last()};
    std::array<Pixel, 2> other = same;
    double best = kSameDistance + 1;
    for (const Pixel a : {paths_[0].first(), paths_[0].last()}) {
      for (const Pixel b : {paths_[1].first(), paths_[1].last()}) {
        const double off = std::abs(euclidean(a, b) - euclidean(same[0], same[1]));
        if (off < best) {
          best = off;
          other = {a, b};
        }
      }
    }
    if (best > kSameDistance) return {};
    return connected ? same : other;
  }

  PathfinderImage image(const std::array<Pixel, 2>& dots, LraDraws& draws) const {
    PathfinderImage out;
    for (const DashedPath& path : paths_) {
      for (const Dash& dash : path.dashes) {
        const auto value = uint8_t(draws.between(96, 223));
        for (const Pixel p : dash) out.pixels[size_t(p.y * kImageSide + p.x)] = value;
      }
    }
    for (const Pixel dot : dots) {
      around(dot, 1, [&](size_t at) { out.pixels[at] = kDot; });
    }
    return out;
  }

 private:
  template <class Use>
  static void each_lit(const DashedPath& path, bool dots, const Use& use) {
    for (const Dash& dash : path.dashes) {
      for (const Pixel p : dash) use(p, 0);
    }
    if (!dots) return;
    use(path.first(), 1);
    use(path.last(), 1);
  }

  bool meets(const DashedPath& path, bool dots) const {
    bool found = false;
    each_lit(path, dots, [&](Pixel p, int64_t radius) {
      around(p, radius, [&](size_t at) { found = found || blocked_[at]; });
    });
    return found;
  }
  void block(const DashedPath& path, bool dots) {
    each_lit(path, dots, [&](Pixel p, int64_t radius) {
      around(p, radius + kReach, [&](size_t at) { blocked_[at] = true; });
    });
  }

  std::vector<DashedPath> paths_;
  std::array<bool, kImagePixels> blocked_ = {};
};

}  // namespace

void PathfinderRules::describe(Schema& s) {
  s.field("dashes", dashes, "Dashes of each of Pathfinder's two paths", {.min = 2, .max = 10});
  s.field("distractors", distractors, "Paths of two dashes without a dot", {.min = 0, .max = 8});
}

void PathfinderRules::validate() const {
  check(dashes >= 2, "pathfinder: paths of ", dashes, " dashes, at least 2 are needed");
  check(distractors >= 0, "pathfinder: ", distractors, " distractors");
}

PathfinderImage draw_pathfinder(const PathfinderRules& rules, bool connected, LraDraws& draws) {
  rules.validate();
  for (int i = 0; i < kSceneAttempts; ++i) {
    Scene scene;
    bool placed =
        scene.place_path(rules.dashes, true, draws) && scene.place_path(rules.dashes, true, draws);
    if (!placed) continue;
    const std::optional<std::array<Pixel, 2>> dots = scene.dots(connected, draws);
    if (!dots) continue;
    for (int64_t d = 0; placed && d < rules.distractors; ++d) {
      placed = scene.place_path(2, false, draws);
    }
    if (!placed) continue;
    PathfinderImage out = scene.image(*dots, draws);
    out.connected = connected;
    return out;
  }
  throw Error(join("pathfinder: two paths of ", rules.dashes, " dashes with ", rules.distractors,
                   " distractors did not fit into ", kImageSide, " x ", kImageSide, " pixels in ",
                   kSceneAttempts, " attempts; use fewer"));
}

}  // namespace brine::data
