// A student next to its floors and ceilings with as many keys: the teacher under its top keys,
// best columns or blocks, sinks + recent keys and the most recent keys, in perplexity and mask
// recall.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "distill/evaluation/health/mask_health.h"
#include "distill/evaluation/sweep.h"

namespace brine::distill {

struct FloorRow {
  std::string name;
  int64_t k = 0;                      // 0: all keys
  double kept = 0, tile_kept = 0;     // keys of a row and, of blocks, of its tile; 0: not counted
  std::optional<double> perplexity;   // none for random keys
  std::optional<double> ratio;        // perplexity over the dense teacher's
  std::optional<double> recall;       // none for the dense teacher
  std::optional<MaskHealth> student;  // of the student's mask
};

// Every row, passed on as soon as it is measured: the dense teacher, then for each k the student
// for each query_skip, the teacher under its top keys, best columns, sinks + recent, most recent
// keys, and random keys. A student with blocks keeps more than k keys (fixed blocks, and those of
// its tile): next to it are the best blocks with the same sharing, and the other rows keep as
// many keys as it does on average.
void floors(const nn::LoadedModel& student, const WindowSource& windows,
            const SweepRequest& request, const std::function<void(const FloorRow&)>& measured);

// Lines of a Markdown table, with their line end.
std::string floor_title();
std::string floor_line(const FloorRow& row);
// The same of a TSV file.
std::string floor_tsv_title();
std::string floor_tsv_line(const FloorRow& row);

}  // namespace brine::distill
