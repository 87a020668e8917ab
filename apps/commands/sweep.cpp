// brine sweep: one model under a grid of k and query skipping, into a table and a TSV file.
#include <cstdio>
#include <filesystem>

#include "apps/cli/terminal.h"
#include "apps/cli/unused_flags.h"
#include "data/io/file_io.h"
#include "distill/evaluation/sweep.h"
#include "distill/runs/training_run.h"

namespace brine {
namespace {

struct Sweep {
  std::string model, out;
  std::vector<std::string> data;
  int64_t sequence_length = 0;
  distill::SweepRequest grid;

  void describe(data::Schema& s) {
    s.field("model", model, "Model directory or run", {.required = true});
    s.field("data", data, "Text files", {.required = true});
    s.field("k", grid.k, "Kept keys per query and head; none: as trained", {.min = 1});
    s.field("query_skip", grid.query_skip, "The estimator runs on every f-th query", {.min = 1});
    s.field("teacher", grid.teacher, "Also the mask recall of this teacher's attention");
    s.field("out", out, "TSV file to write; none: only the table");
    s.field("sequence_length", sequence_length, "Tokens of a window; 0 = the model's positions",
            {.min = 0});
    s.field("batch_size", grid.batch_size, "Windows at once", {.min = 1});
    s.field("max_windows", grid.max_windows, "Only the first windows; 0 = all", {.min = 0});
  }

  int run(const RunContext& context) {
    check(out.empty() || !std::filesystem::exists(out), out, ": exists already");
    const nn::LoadedModel m = distill::load_model(model, log_messages());
    check(m.model->attention_traits().sparse, "sweep: attention '", m.config.attention,
          "' has no dials");
    refuse_unused_options(context, *m.model);
    const std::unique_ptr<data::Tokenizer> tokenizer = distill::tokenizer_of(m, log_messages());
    const int64_t window = distill::window_of(sequence_length, m.config, "sweep");
    const auto windows = distill::windows_of(
        distill::load_texts(data, *tokenizer, window, 1, log_messages()), window, 0);
    const bool recall = !grid.teacher.empty();
    std::string tsv = join("k\tquery_skip\tperplexity\tms_per_window\tmegabytes",
                           recall ? "\tmask_recall" : "", "\n");
    std::printf("%6s %10s %12s %14s %10s%s\n", "k", "query-skip", "perplexity", "ms a window", "MB",
                recall ? "  mask recall" : "");
    distill::sweep(m, *windows, grid, [&](const distill::SweepCell& cell) {
      std::printf("%s", line_of(cell, "%6lld %10lld %12.4f %14.2f %10.1f", "  %11.3f").c_str());
      std::fflush(stdout);
      tsv += line_of(cell, "%lld\t%lld\t%.6f\t%.3f\t%.3f", "\t%.4f");
    });
    if (!out.empty()) data::write_file_atomic(out, tsv);
    return 0;
  }

  // One line per cell: the table's columns are as wide as their titles, the file's are separated by
  // tabs.
  std::string line_of(const distill::SweepCell& c, const char* format, const char* recall) const {
    char text[160];
    const int n = std::snprintf(text, sizeof text, format, (long long)c.k, (long long)c.query_skip,
                                c.perplexity, c.ms, c.bytes / 1e6);
    if (!grid.teacher.empty()) std::snprintf(text + n, sizeof text - size_t(n), recall, c.recall);
    return std::string(text) + "\n";
  }
};

const RegisterSubcommand<Sweep> registration("sweep", "Evaluate a grid of k and query skipping");

}  // namespace
}  // namespace brine
