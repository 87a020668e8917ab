// The numbers of a model's masks: statistics over layers and heads.
#include "distill/evaluation/health/mask_health.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
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

RecallMeans means_of(const Recall& layer, int64_t head) {
  RecallMeans out;
  for (size_t way = 0; way < out.size(); ++way) out[way] = layer.mean(recall::Way(way), head);
  return out;
}

MaskRow row_of(const std::string& name, const Recall& sum, const std::vector<double>& heads) {
  MaskRow row{.layer = name,
              .keys_read = sum.keys_read(),
              .least = quantile(heads, 0),
              .tenth = quantile(heads, 0.1),
              .rows = sum.rows};
  for (size_t way = 0; way < row.mean.size(); ++way) row.mean[way] = sum.mean(recall::Way(way));
  return row;
}

void add_means(data::Json& out, const RecallMeans& means) {
  for (const Column& c : kColumns) out[c.key] = means[size_t(c.way)];
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
  const nn::AttentionTraits traits = model.attention_traits();
  return traits.sparse && (traits.calibrates || !model.attention(0).named_parameters().empty());
}

MaskHealth mask_health(const std::vector<Recall>& layers) {
  const MaskRow all = mask_rows(layers).back();
  if (all.rows == 0) return {};
  return {.recall = all.mean[recall::kMask],
          .least = all.least,
          .tenth = all.tenth,
          .top_hit = all.mean[recall::kTopHit],
          .sinks_recent = all.mean[recall::kSinksRecent],
          .top_keys = all.mean[recall::kTopKeys],
          .rows = all.rows,
          .keys_read = all.keys_read};
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
          {"mask_top1_hit", h.top_hit},
          {"keys_read", h.keys_read}};
}

std::vector<MaskRow> mask_rows(const std::vector<Recall>& layers) {
  std::vector<MaskRow> rows;
  Recall all;
  std::vector<double> heads;
  for (size_t i = 0; i < layers.size(); ++i) {
    const Recall& layer = layers[i];
    const std::vector<double> head_recalls = by_head(layer);
    rows.push_back(row_of(std::to_string(i), layer, head_recalls));
    for (int64_t h = 0; h < layer.heads(); ++h) rows.back().heads.push_back(means_of(layer, h));
    heads.insert(heads.end(), head_recalls.begin(), head_recalls.end());
    if (layer.heads() > 0) all += layer;
  }
  rows.push_back(row_of("all", all, heads));
  return rows;
}

data::Json to_json(const std::vector<MaskRow>& rows) {
  data::Json out = data::Json::array();
  for (const MaskRow& row : rows) {
    data::Json object = {{"layer", row.layer}, {"keys_read", row.keys_read}};
    add_means(object, row.mean);
    object["min"] = row.least;
    object["p10"] = row.tenth;
    object["rows"] = row.rows;
    if (row.layer != "all") {
      object["heads"] = data::Json::array();
      for (const RecallMeans& head : row.heads) {
        data::Json means = data::Json::object();
        add_means(means, head);
        object["heads"].push_back(means);
      }
    }
    out.push_back(object);
  }
  return out;
}

data::Json to_json(const MaskHealth& health) {
  data::Json out = {{"reference", "own dense attention, start of the first window"},
                    {"rows", health.rows}};
  for (const auto& [name, value] : log_values(health)) out[name] = value;
  out["sinks_recent"] = health.sinks_recent;
  return out;
}

}  // namespace brine::distill
