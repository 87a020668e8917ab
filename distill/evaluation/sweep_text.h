// A sweep over text files: what it is, its table for people and its TSV file.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "distill/evaluation/sweep.h"
#include "distill/inputs/models.h"

namespace brine::distill {

struct TextSweep {
  std::vector<std::string> data;  // text files or token shards
  std::string out;                // TSV file; empty: none
  int64_t sequence_length = 0;    // of a window; 0: the model's positions
  bool floors = false;            // the student next to its floors instead of times and memory
  SweepRequest grid;
  OtherAttention attention;  // for use_attention(), which sweep_text() does not call

  void describe(data::Schema& s);
};

// Title and cells of the table and of the TSV file, a line each, with its line end. `recall`: they
// have the column of the mask recall.
std::string table_title(bool recall);
std::string table_line(const SweepCell& cell, bool recall);
std::string tsv_title(bool recall);
std::string tsv_line(const SweepCell& cell, bool recall);

// A model that must be calibrated is calibrated on the first window. Writes each line of the table
// as soon as its cell is measured, and the TSV file at the end.
void sweep_text(const nn::LoadedModel& model, const data::Tokenizer& tokenizer,
                const TextSweep& what, std::ostream& table, const Messages& messages);

}  // namespace brine::distill
