// Pathfinder (Linsley et al., "Learning long-range spatial dependencies with horizontal gated
// recurrent units", NeurIPS 2018; after Houtkamp and Roelfsema, "Parallel and serial grouping of
// image elements in visual perception", 2010) at the size of Long Range Arena, 32 x 32 gray pixels:
// two dashed paths and two dots at ends of paths; are both dots on one path?
#pragma once

#include <array>
#include <cstdint>

#include "data/config/schema.h"
#include "data/tasks/lra/lra_draws.h"

namespace brine::data {

inline constexpr int64_t kImageSide = 32, kImagePixels = kImageSide * kImageSide;

// What is drawn. A path turns smoothly; its dashes are three steps of a pixel long, with two steps
// between them that are dark. Distractors are paths of two dashes without a dot. The background is
// 0, a dash has one drawn value of 96 to 223, so that brightness does not tell which path it is of,
// and a dot is a square of 3 x 3 pixels of 255 on the end of a path. Lit pixels of one path are
// connected over at most 3 pixels (in rows and in columns), the distance between those of different
// paths is at least 4. Every scene can be of either class: it has ends of one path and ends of both
// paths whose distances differ by at most 1.5 pixels, so that the dots' distance does not tell the
// class.
struct PathfinderRules {
  int64_t dashes = 6;
  int64_t distractors = 2;

  void describe(Schema& s);
  // Throws an Error that names the setting.
  void validate() const;
};

struct PathfinderImage {
  std::array<uint8_t, kImagePixels> pixels = {};  // rows from the top
  bool connected = false;
};

// An image of the class. Throws an Error when 20,000 scenes were given up since not all paths fit.
PathfinderImage draw_pathfinder(const PathfinderRules& rules, bool connected, LraDraws& draws);

}  // namespace brine::data
