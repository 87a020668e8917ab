// How good the masks of a model are: their recall by layer and head next to floors and ceilings
// with as many keys, and whether they have degenerated to a fixed pattern.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "data/config/schema.h"
#include "distill/evaluation/recall.h"
#include "distill/log/values.h"
#include "nn/models/model.h"

namespace brine::distill {

// A mask has degenerated when its recall exceeds that of sinks + recent keys by at most
// kDegenerate, and by at most kShare of what each query's top keys gain.
inline constexpr double kDegenerate = 0.02, kShare = 0.1;

// Over layers and heads.
struct MaskHealth {
  double recall = 0;   // mean
  double least = 0;    // of a head of a layer
  double tenth = 0;    // 10th percentile of the heads of all layers
  double top_hit = 0;  // share of rows whose heaviest key is kept
  double sinks_recent = 0;
  double top_keys = 0;  // of each query's largest keys
  int64_t rows = 0;     // per head, of all layers
  double keys_read = 0;

  // The learned mask is no better than a fixed one.
  bool degenerate() const {
    const double gain = recall - sinks_recent;
    return rows > 0 && gain <= kDegenerate && gain <= kShare * (top_keys - sinks_recent);
  }
};
// Whether the attention learned, or was calibrated, which keys to keep: a fixed rule needs no
// watching.
bool learns_mask(const nn::Model& model);
MaskHealth mask_health(const std::vector<Recall>& layers);
// "" for a mask that has not degenerated; else one line that says so.
std::string degenerate_warning(const MaskHealth& health);
// For logs: mask_recall, mask_recall_min, mask_recall_p10, mask_top1_hit, keys_read; none without
// rows.
Values log_values(const MaskHealth& health);

// The q-th quantile (0..1) with linear interpolation between the sorted values; 0 of none.
double quantile(std::vector<double> values, double q);

// Means by recall::Way.
using RecallMeans = std::array<double, recall::kWays>;
// A layer, or all of them.
struct MaskRow {
  std::string layer;  // "0", "1"..., "all"
  double keys_read = 0;
  RecallMeans mean = {};
  double least = 0, tenth = 0;  // mask recall of a head: the least and the 10th percentile
  int64_t rows = 0;
  std::vector<RecallMeans> heads = {};  // none of "all"
};
// One row per layer and one for "all".
std::vector<MaskRow> mask_rows(const std::vector<Recall>& layers);
// An object per row: layer, keys_read, mask, top_keys, best_columns, most_recent,
// random, sinks_recent, top1_hit, teacher_recent_64, teacher_first_4, mask_recent_64,
// mask_first_4, min, p10, rows; of a layer "heads", the same means of each.
data::Json to_json(const std::vector<MaskRow>& rows);
data::Json to_json(const MaskHealth& health);

}  // namespace brine::distill
