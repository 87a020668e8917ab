// Which path of oneDNN a class of products takes by measurement, and the table of paths as a file.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tensor/cpu/core/onednn.h"

namespace brine::onednn {

// Times of one piece by every path that its type has, in the order of Path, for each turn.
struct MeasuredPiece {
  Piece piece;
  std::vector<Path> paths;
  std::vector<std::vector<double>> turns;  // [turn][path] ms
};
// Every path that takes the type.
std::vector<Path> paths_of(Input input);
ProductClass product_class(const Piece& piece);

// A path replaces the default of a class when it is at least 5 % faster for every piece of the
// class in every turn; of several, the one whose smallest gain is the largest. Entries of classes
// without such a path are left out. Ascending.
std::vector<PathEntry> choose_paths(Cpu cpu, const std::vector<MeasuredPiece>& measured);

// The file tensor/cpu/core/onednn_paths.inc: `own` for their CPU, and `others` of other CPUs.
std::string path_file(Cpu cpu, const std::vector<PathEntry>& own,
                      std::span<const PathEntry> others);

}  // namespace brine::onednn
