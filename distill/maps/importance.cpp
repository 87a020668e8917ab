// Lines of kept keys.
#include "distill/maps/importance.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "data/io/json.h"

namespace brine::distill {
namespace {

constexpr int64_t kRowsOfTile = 64;

bool wanted(const std::set<int64_t>& list, int64_t number) {
  return list.empty() || list.count(number) > 0;
}

// Masses are rounded to 4 digits: files of long texts have millions of them.
std::string rounded(double mass) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", mass);
  return text;
}

}  // namespace

ImportanceFile::ImportanceFile(const data::Path& path, const data::Json& head,
                               const std::vector<std::string>& tokens)
    : file_(path) {
  data::Json line = {{"format", "brine-importance"}, {"version", 1}};
  line.update(head);
  line["tokens"] = tokens;
  file_.write(printable_json(line) + "\n");
}

std::string importance_lines(const ImportanceRequest& request, int64_t layer,
                             const LayerView& view) {
  check(view.has_mask(), "importance: layer ", layer, " attends to all keys, it has no mask");
  std::string lines;
  if (!wanted(request.layers, layer)) return lines;
  const int64_t T = view.tokens();
  std::vector<KeptKey> kept;
  for (int64_t h = 0; h < view.heads(); ++h) {
    if (!wanted(request.heads, h)) continue;
    Tensor tile;
    for (int64_t t = 0; t < T; ++t) {
      if (t % kRowsOfTile == 0) tile = teacher_tile(view, h, t, std::min(kRowsOfTile, T - t));
      kept_keys(view, h, t, kept);
      double recall = 0;
      for (const KeptKey& each : kept) recall += tile.data<float>()[t % kRowsOfTile * T + each.key];
      const size_t all = kept.size();
      std::stable_sort(kept.begin(), kept.end(),
                       [](const KeptKey& a, const KeptKey& b) { return a.mass > b.mass; });
      if (request.most && int64_t(all) > request.most) kept.resize(size_t(request.most));
      std::string keys, masses;
      for (const KeptKey& each : kept) {
        keys += (keys.empty() ? "" : ",") + std::to_string(each.key);
        masses += (masses.empty() ? "" : ",") + rounded(each.mass);
      }
      lines += join("{\"layer\":", layer, ",\"head\":", h, ",\"query\":", t, ",\"kept\":", all,
                    ",\"teacher\":", rounded(recall), ",\"keys\":[", keys, "],\"mass\":[", masses,
                    "]}\n");
    }
  }
  return lines;
}

}  // namespace brine::distill
