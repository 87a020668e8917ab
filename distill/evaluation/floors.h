// A student next to its floors and ceilings at equal keys read: the teacher under its top keys,
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
  int64_t k = 0;  // 0: all keys
  double keys_read = 0;
  std::optional<double> perplexity;   // none for random keys
  std::optional<double> ratio;        // perplexity over the dense teacher's
  std::optional<double> recall;       // none for the dense teacher
  std::optional<MaskHealth> student;  // of the student's mask
};

// Every row, passed on as soon as it is measured: the dense teacher, then for each k the student
// for each query_skip, the teacher under its top keys, best columns, sinks + recent, most recent
// keys, and random keys. Rows of a student with blocks read more than k keys, those of their tile's
// list: next to it are the best blocks with the same sharing, and the k of the other rows is that
// with which they read as many keys. Sinks and recent keys are whole blocks of such a student's
// size, of others of 4 keys. `student` is calibrated if it must be.
void floors(const nn::LoadedModel& student, const WindowSource& windows,
            const SweepRequest& request, const std::function<void(const FloorRow&)>& measured);

// Lines of a Markdown table, with their line end.
std::string floor_title();
std::string floor_line(const FloorRow& row);
// The same of a TSV file.
std::string floor_tsv_title();
std::string floor_tsv_line(const FloorRow& row);

}  // namespace brine::distill
