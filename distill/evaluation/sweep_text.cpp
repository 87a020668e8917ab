// A sweep over text files: what it is, its table for people and its TSV file.
#include "distill/evaluation/sweep_text.h"

#include <algorithm>
#include <cstdio>

#include "data/io/file_io.h"
#include "distill/evaluation/floors.h"
#include "distill/inputs/texts.h"
#include "distill/ranks/exchange.h"
#include "tensor/comm/shared_work.h"

namespace brine::distill {
namespace {

std::string line_of(const SweepCell& c, const char* format, const char* recall_format,
                    bool recall) {
  // A double has up to 309 digits before the point: the perplexity of a model that diverged.
  char text[1200], of_recall[400] = "";
  std::snprintf(text, sizeof text, format, (long long)c.k, (long long)c.query_skip, c.perplexity,
                c.keys_read, c.ms, c.bytes / 1e6);
  if (recall) std::snprintf(of_recall, sizeof of_recall, recall_format, c.recall);
  return join(text, of_recall, "\n");
}

void write_table(const TextSweep& what, const std::string& tsv) {
  if (what.out.empty()) return;
  SelfCommunicator alone;
  do_work_of_first(what.grid.ranks ? *what.grid.ranks : alone, what.out,
                   [&] { data::write_file_atomic(what.out, tsv); });
}

void write_floors(const nn::LoadedModel& model, const WindowSource& windows, const TextSweep& what,
                  std::ostream& table) {
  std::string tsv = floor_tsv_title();
  table << floor_title() << std::flush;
  floors(model, windows, what.grid, [&](const FloorRow& row) {
    table << floor_line(row) << std::flush;
    tsv += floor_tsv_line(row);
  });
  write_table(what, tsv);
}

}  // namespace

void TextSweep::describe(data::Schema& s) {
  s.field("data", data, "Text files", {.required = true});
  s.field("k", grid.k, "Kept keys per query and head; none: as trained", {.min = 1});
  attention.describe(s);
  s.field("query_skip", grid.query_skip, "The estimator runs on every f-th query", {.min = 1});
  s.field("teacher", grid.teacher, "Also the mask recall of this teacher's attention");
  s.field("floors", floors,
          "For each k, the student next to floors with as many keys (a Markdown table)");
  s.field("out", out, "TSV file to write; none: only the table");
  s.field("sequence_length", sequence_length, "Tokens of a window; 0 = the model's positions",
          {.min = 0, .alias = "window"});
  s.field("batch_size", grid.batch_size, "Windows at once", {.min = 1});
  s.field("max_windows", grid.max_windows, "Only the first windows; 0 = all", {.min = 0});
}

std::string table_title(bool recall) {
  char text[96];
  std::snprintf(text, sizeof text, "%6s %10s %12s %10s %14s %10s%s\n", "k", "query-skip",
                "perplexity", "keys read", "ms a window", "MB", recall ? "  mask recall" : "");
  return text;
}

std::string table_line(const SweepCell& cell, bool recall) {
  return line_of(cell, "%6lld %10lld %12.4f %10.1f %14.2f %10.1f", "  %11.3f", recall);
}

std::string tsv_title(bool recall) {
  return join("k\tquery_skip\tperplexity\tkeys_read\tms_per_window\tmegabytes",
              recall ? "\tmask_recall" : "", "\n");
}

std::string tsv_line(const SweepCell& cell, bool recall) {
  return line_of(cell, "%lld\t%lld\t%.6f\t%.2f\t%.3f\t%.3f", "\t%.4f", recall);
}

void sweep_text(const nn::LoadedModel& model, const data::Tokenizer& tokenizer,
                const TextSweep& what, std::ostream& table, const Messages& messages) {
  if (what.grid.ranks) compare_models(*what.grid.ranks, model);
  refuse_classifier(model, "sweep");
  compare_teacher(what.grid.teacher, tokenizer, messages);
  const int64_t window = window_of(what.sequence_length, model.config, "sweep");
  const std::unique_ptr<WindowSource> windows =
      windows_of(load_texts(what.data, tokenizer, window, messages), window, 0);
  calibrate_on(model, windows->in_order(0, 1).ids, messages);
  if (what.floors) {
    write_floors(model, *windows, what, table);
    return;
  }
  const bool recall = !what.grid.teacher.empty();
  std::string tsv = tsv_title(recall);
  table << table_title(recall) << std::flush;
  sweep(model, *windows, what.grid, [&](const SweepCell& cell) {
    table << table_line(cell, recall) << std::flush;
    tsv += tsv_line(cell, recall);
  });
  write_table(what, tsv);
  warn_if_all_kept(model.config, what.grid.k.empty() ? 0 : std::ranges::max(what.grid.k), window,
                   messages);
}

}  // namespace brine::distill
