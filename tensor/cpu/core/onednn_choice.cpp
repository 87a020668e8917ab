// Choice of paths by measured times, and the table of paths as text.
#include "tensor/cpu/core/onednn_choice.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "tensor/error.h"

namespace brine::onednn {

std::vector<Path> paths_of(Input input) {
  if (input == Input::bf16) return {Path::matmul, Path::packed};
  return {Path::sgemm, Path::matmul, Path::packed};
}

ProductClass product_class(const Piece& p) {
  const Gemm& g = p.gemm;
  return product_class(p.input, g.ta, g.tb, g.M, g.N, g.K);
}

std::vector<PathEntry> choose_paths(Cpu cpu, const std::vector<MeasuredPiece>& measured) {
  constexpr double kGain = 1.05;
  // The smallest gain of a path over the default, by class.
  std::map<ProductClass, std::map<Path, double>> gains;
  for (const MeasuredPiece& m : measured) {
    const Path usual = default_path(m.piece.input);
    const size_t at = size_t(std::ranges::find(m.paths, usual) - m.paths.begin());
    auto& of_class = gains[product_class(m.piece)];
    for (size_t p = 0; p < m.paths.size(); ++p) {
      double& least =
          of_class.try_emplace(m.paths[p], std::numeric_limits<double>::infinity()).first->second;
      for (const std::vector<double>& ms : m.turns) least = std::min(least, ms[at] / ms[p]);
    }
  }
  std::vector<PathEntry> out;
  for (const auto& [product, of_class] : gains) {
    const auto best = std::ranges::max_element(
        of_class, [](const auto& a, const auto& b) { return a.second < b.second; });
    if (best->second >= kGain) out.push_back({cpu, product, best->first});
  }
  return out;
}

std::string path_file(Cpu cpu, const std::vector<PathEntry>& own,
                      std::span<const PathEntry> others) {
  std::vector<PathEntry> all = own;
  for (const PathEntry& e : others) {
    if (e.cpu != cpu) all.push_back(e);
  }
  std::ranges::sort(all, [](const PathEntry& a, const PathEntry& b) {
    return std::tie(a.cpu, a.product) < std::tie(b.cpu, b.product);
  });
  std::string text =
      "// Paths of products that differ from the default, by CPU: written by\n"
      "// `brine bench products --write FILE` on each.\n"
      "// {CPU, {input, transposed a, transposed b, exponents of M, N and K}, path}\n"
      "// clang-format off\n";
  auto word = [](bool b) { return b ? "true" : "false"; };
  for (const auto& [c, p, path] : all) {
    text += join("{Cpu::", name_of(c), ", {Input::", p.input == Input::f32 ? "f32" : "bf16", ", ",
                 word(p.ta), ", ", word(p.tb), ", ", p.m, ", ", p.n, ", ", p.k,
                 "}, Path::", name_of(path), "},\n");
  }
  return text + "// clang-format on\n";
}

}  // namespace brine::onednn
