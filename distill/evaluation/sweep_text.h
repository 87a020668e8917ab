// One model under a grid of kept keys and query skipping, over text files: perplexity, time, memory
// and mask recall, as a human-readable table and as a TSV file.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "distill/evaluation/evaluate.h"
#include "distill/inputs/models.h"
#include "nn/io/model_io.h"

namespace brine::distill {

struct SweepRequest {
  std::vector<int64_t> k = {};  // kept keys; empty: as trained
  std::vector<int64_t> query_skip = {1};
  int64_t batch_size = 8, max_windows = 0;
  std::string teacher;  // whose attention the masks should cover; empty: no mask recall
  // Processes that divide the windows (EvaluateCall). Then times are those until all are done, and
  // memory is this one's.
  Communicator* ranks = nullptr;
};

struct SweepCell {
  int64_t k = 0, query_skip = 1;
  double perplexity = 0;
  double recall = 0;  // of the mask; 0 without a teacher
  double keys_read = 0;
  double ms = 0;     // of a window
  double bytes = 0;  // peak of allocated bytes, including the weights
};

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
