// The numbers of a model's masks: statistics over layers and heads, as JSON and for people.
#include "distill/evaluation/health/mask_health.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

namespace brine::distill {
namespace {

struct Column {
  const char* key;
  recall::Way way;
};
constexpr Column kColumns[] = {{"mask", recall::kMask},
                               {"top_keys", recall::kTopKeys},
                               {"best_columns", recall::kBestColumns},
                               {"most_recent", recall::kRecent},
                               {"random", recall::kRandom},
                               {"sinks_recent", recall::kSinksRecent},
                               {"top1_hit", recall::kTopHit},
                               {"teacher_recent_64", recall::kNearAll},
                               {"teacher_first_4", recall::kFirstAll},
                               {"mask_recent_64", recall::kNearMask},
                               {"mask_first_4", recall::kFirstMask}};

// Mask recall of every head.
std::vector<double> by_head(const Recall& layer) {
  std::vector<double> out;
  out.reserve(size_t(layer.heads()));
  for (int64_t h = 0; h < layer.heads(); ++h) out.push_back(layer.mean(recall::kMask, h));
  return out;
}

data::Json heads_of(const Recall& layer) {
  data::Json heads = data::Json::array();
  for (int64_t h = 0; h < layer.heads(); ++h) {
    data::Json row = data::Json::object();
    for (const Column& c : kColumns) row[c.key] = layer.mean(c.way, h);
    heads.push_back(row);
  }
  return heads;
}

data::Json row_of(const std::string& name, const Recall& sum, const std::vector<double>& heads) {
  data::Json row = {
      {"layer", name}, {"kept_keys", sum.kept_keys()}, {"tile_keys", sum.kept_of_tile()}};
  for (const Column& c : kColumns) row[c.key] = sum.mean(c.way);
  row["min"] = quantile(heads, 0);
  row["p10"] = quantile(heads, 0.1);
  row["rows"] = sum.rows;
  return row;
}

void print_row(const char* format, const data::Json& row, std::initializer_list<const char*> keys) {
  char text[32];
  for (const char* key : keys) {
    std::snprintf(text, sizeof text, format, row.at(key).get<double>());
    std::cout << text;
  }
}

}  // namespace

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double at = q * double(values.size() - 1);
  const auto low = size_t(std::floor(at)), high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - double(low)) * (values[high] - values[low]);
}

bool learns_mask(const nn::Model& model) {
  return model.attention_traits().sparse && !model.attention(0).named_parameters().empty();
}

MaskHealth mask_health(const std::vector<Recall>& layers) {
  Recall all;
  std::vector<double> heads;
  for (const Recall& layer : layers) {
    if (layer.heads() == 0) continue;
    all += layer;
    for (double x : by_head(layer)) heads.push_back(x);
  }
  if (all.rows == 0) return {};
  return {.recall = all.mean(recall::kMask),
          .least = quantile(heads, 0),
          .tenth = quantile(heads, 0.1),
          .top_hit = all.mean(recall::kTopHit),
          .sinks_recent = all.mean(recall::kSinksRecent),
          .top_keys = all.mean(recall::kTopKeys),
          .rows = all.rows,
          .kept = all.kept_keys(),
          .tile_kept = all.kept_of_tile()};
}

std::string degenerate_warning(const MaskHealth& h) {
  if (!h.degenerate()) return "";
  char text[160];
  std::snprintf(text, sizeof text,
                "the mask has degenerated: its recall is %.3f, that of %lld sinks + the most "
                "recent keys %.3f with as many keys",
                h.recall, (long long)recall::kSinks, h.sinks_recent);
  return text;
}

Values log_values(const MaskHealth& h) {
  if (h.rows == 0) return {};
  return {{"mask_recall", h.recall},
          {"mask_recall_min", h.least},
          {"mask_recall_p10", h.tenth},
          {"mask_top1_hit", h.top_hit}};
}

std::string kept_line(double row, double tile) {
  char text[96];
  if (tile > 0) {
    std::snprintf(text, sizeof text, "kept keys  %.1f of a row, %.1f of its tile\n", row, tile);
  } else {
    std::snprintf(text, sizeof text, "kept keys  %.1f of a row\n", row);
  }
  return text;
}

data::Json mask_health_rows(const std::vector<Recall>& layers) {
  data::Json rows = data::Json::array();
  Recall all;
  std::vector<double> heads;
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::vector<double> head_recalls = by_head(layers[i]);
    rows.push_back(row_of(std::to_string(i), layers[i], head_recalls));
    rows.back()["heads"] = heads_of(layers[i]);
    heads.insert(heads.end(), head_recalls.begin(), head_recalls.end());
    if (layers[i].heads() > 0) all += layers[i];
  }
  rows.push_back(row_of("all", all, heads));
  return rows;
}

void print_mask_health(const data::Json& rows) {
  std::cout << "mask recall  by layer: teacher's attention mass inside the mask, rows with w > k\n"
            << "  layer   mask    min    p10      top keys  best columns  sinks+recent  most recent"
            << "   random  top-1 hit\n";
  for (const data::Json& row : rows) {
    const std::string layer = row["layer"];
    if (row["rows"].get<int64_t>() == 0) {
      std::cout << "  " << layer << ": no row sees more than k keys\n";
      continue;
    }
    std::cout << "  " << std::string(5 - std::min<size_t>(layer.size(), 5), ' ') << layer;
    print_row("  %5.3f", row, {"mask", "min", "p10"});
    print_row("  %12.3f", row, {"top_keys", "best_columns", "sinks_recent"});
    print_row("  %11.3f", row, {"most_recent"});
    print_row("  %7.3f", row, {"random"});
    print_row("  %9.3f", row, {"top1_hit"});
    std::cout << "\n";
  }
  const data::Json& all = rows.back();
  if (all["rows"].get<int64_t>() == 0) return;
  std::cout << "mass on the 64 most recent and the 4 first keys: teacher";
  print_row("  %.3f", all, {"teacher_recent_64", "teacher_first_4"});
  std::cout << ", mask";
  print_row("  %.3f", all, {"mask_recent_64", "mask_first_4"});
  std::cout << "\n" << kept_line(all.at("kept_keys"), all.at("tile_keys"));
}

}  // namespace brine::distill
