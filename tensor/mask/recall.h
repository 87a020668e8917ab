// What the kernel attention_recall measures, in the order of its sums, and the masks that it
// compares with: shared by both devices.
#pragma once

#include <cstdint>

#include "tensor/base/host_device.h"

namespace brine::recall {

constexpr int64_t kSinks = 4;  // first keys of a sequence, which draw attention whatever they are
constexpr int64_t kNear = 64;  // most recent keys (encoder: nearest)

// Sums over rows, per head. Masses are of the teacher's attention. "As many": the budget of the
// row's group, spread evenly over its rows.
enum Way {
  kMask,         // mass on the mask
  kTopKeys,      // on the largest keys of the group, as many as the mask has
  kBestColumns,  // on the mask `best`
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

struct KeyRange {
  int64_t first = 0, end = 0;
  BRINE_HD bool contains(int64_t key) const { return key >= first && key < end; }
};

// The n keys of [from, w) that are nearest to row t; n <= w - from. As in the attention method
// "recent".
BRINE_HD KeyRange nearest_keys(bool causal, int64_t w, int64_t t, int64_t n, int64_t from = 0) {
  const int64_t last = w - n;
  int64_t first = t - n / 2;
  if (first < from) first = from;
  if (causal || first > last) first = last;
  return {first, first + n};
}

// The masks that do not depend on the attention: `share` <= w keys of a row.
struct FixedKeys {
  KeyRange recent, near;  // the `share` nearest; the kNear nearest
  KeyRange rest;          // the nearest after the first `sinks` keys
  int64_t sinks = 0;

  BRINE_HD FixedKeys(bool causal, int64_t w, int64_t t, int64_t share)
      : recent(nearest_keys(causal, w, t, share)),
        near(nearest_keys(causal, w, t, kNear < w ? kNear : w)),
        sinks(share > kSinks ? kSinks : (share > 0 ? share - 1 : 0)) {
    rest = nearest_keys(causal, w, t, share - sinks, sinks);
  }
  BRINE_HD bool sinks_recent(int64_t key) const { return key < sinks || rest.contains(key); }
};

// What a row's entries of a mask have.
struct Entries {
  double mass = 0, near = 0, first = 0, heaviest = 0;

  BRINE_HD void add(double value, int64_t key, const KeyRange& nearest) {
    mass += value;
    near += nearest.contains(key) ? value : 0;
    first += key < kSinks ? value : 0;
    heaviest = value > heaviest ? value : heaviest;
  }
};

}  // namespace brine::recall
