// Mask recall: how much of the teacher's attention a sparse mask covers.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "nn/attention/observer.h"
#include "tensor/mask/teacher.h"

namespace brine::recall {

constexpr int64_t kRows = 256;  // of a sequence that are counted, at most
constexpr int64_t kSinks = 4;   // first keys of a sequence, attention sinks
constexpr int64_t kNear = 64;   // most recent keys (encoder: nearest)

// Sums over rows, per head. Masses are of the teacher's attention. "As many": the budget of the
// row's group, spread evenly over its rows.
enum Way {
  kMask,         // mass on the mask
  kTopKeys,      // on the largest keys of the group, as many as the mask has
  kBestColumns,  // on the mask of the teacher's best columns
  kRecent,       // on as many most recent keys
  kRandom,       // expected on as many random keys
  kSinksRecent,  // on as many: the first kSinks keys (of fewer all but one), and the most recent
  kTopHit,       // 1 for a row whose heaviest key is in the mask
  kNearAll,      // mass on the kNear most recent keys
  kFirstAll,     // on the kSinks first keys
  kNearMask,     // as kNearAll, of the attention renormalised over the mask
  kFirstMask,    // as kFirstAll, of the attention renormalised over the mask
  kWays
};

}  // namespace brine::recall

namespace brine::distill {

// Teacher mass on the mask, and on other masks with as many keys, over the rows that see more than
// k keys, or kRows of a sequence, evenly spaced: sums over rows, per head, so that batches can be
// added.
struct Recall {
  std::array<std::vector<double>, recall::kWays> sums;  // [way][head]
  int64_t rows = 0;                                     // per head
  // Of all rows, not only of those counted above: the keys that they read (KeysRead).
  double read = 0;
  int64_t all_rows = 0;

  int64_t heads() const { return int64_t(sums[0].size()); }
  // Means over the rows of one head, or over all heads; 0 where there were no rows.
  double mean(recall::Way way, int64_t head) const;
  double mean(recall::Way way) const;
  double keys_read() const { return all_rows > 0 ? read / double(all_rows) : 0; }

  // An empty Recall gets the other's heads; otherwise the numbers of heads must agree.
  Recall& operator+=(const Recall& other);
};

// The mask in the tap of a layer.
FlatCsr mask_of(const nn::Tap& tap);

// As bytes, for other ranks.
std::string bytes_of(const std::vector<Recall>& layers);
// Adds them layer by layer.
void add_bytes(std::vector<Recall>& layers, const std::string& bytes);

// The budget of each group of `config.mode` is the number of entries
// that the mask has there; the teacher's columns are select_columns() of its mass in K columns.
Recall attention_recall(const TeacherAttention& teacher, const FlatCsr& csr, int64_t K,
                        const Visibility& visible, const SelectConfig& config);

}  // namespace brine::distill
