// brine sweep: one model under a grid of its dials, into a table and a TSV file.
#include <chrono>
#include <cstdio>

#include "apps/cli/terminal.h"
#include "apps/shared/training.h"
#include "data/io/file_io.h"
#include "distill/evaluation/evaluate.h"
#include "distill/evaluation/recall_observer.h"
#include "nn/io/model_io.h"
#include "tensor/device/allocator.h"

#include <nlohmann/json.hpp>

namespace brine {
namespace {

struct Sweep {
  std::string model, teacher, out;
  std::vector<std::string> data;
  std::vector<int64_t> k = {}, query_skip = {1};
  int64_t sequence_length = 0, batch_size = 8, max_windows = 0;

  void describe(data::Schema& s) {
    s.field("model", model, "Model directory or run", {.required = true});
    s.field("data", data, "Text files", {.required = true});
    s.field("k", k, "Kept keys per query and head; none: as trained", {.min = 1});
    s.field("query_skip", query_skip, "The estimator runs on every f-th query", {.min = 1});
    s.field("teacher", teacher, "Also the mask recall of this teacher's attention");
    s.field("out", out, "TSV file to write; none: only the table");
    s.field("sequence_length", sequence_length, "Tokens of a window; 0 = the model's positions",
            {.min = 0});
    s.field("batch_size", batch_size, "Windows at once", {.min = 1});
    s.field("max_windows", max_windows, "Only the first windows; 0 = all", {.min = 0});
  }

  int run(const RunContext& context);
};

// One cell of the grid.
struct Cell {
  int64_t k = 0, query_skip = 1;
  double perplexity = 0, recall = 0;
  double ms = 0;     // of a window
  double bytes = 0;  // most alive at once, the weights included
};

// The teacher, from the first recall on, and what is alive without it.
struct Teacher {
  std::string path;  // empty: none
  std::unique_ptr<distill::RecallObserver> recall = {};
  int64_t live_without = 0;
};

// In a pass of its own: the teacher's time and memory are not the model's.
double recall_of(const nn::LoadedModel& m, const distill::WindowSource& windows,
                 distill::EvaluateCall call, Teacher& teacher) {
  if (!teacher.recall) {
    teacher.live_without = allocator_stats().live;
    teacher.recall = std::make_unique<distill::RecallObserver>(nn::load_model(teacher.path), m, 0);
  }
  teacher.recall->restart(call.dials.k);
  call.observer = teacher.recall.get();
  call.before_batch = [&](const distill::Batch& batch) { teacher.recall->begin(batch); };
  distill::evaluate(*m.model, windows, call);
  return teacher.recall->table().back()["mask"];
}

Cell evaluate_cell(nn::LoadedModel& m, const distill::WindowSource& windows,
                   distill::EvaluateCall call, Teacher& teacher) {
  const int64_t of_teacher = teacher.recall ? allocator_stats().live - teacher.live_without : 0;
  distill::EvaluateCall warm = call;  // caches fill before the clock runs
  warm.max_windows = std::min(call.batch_size, windows.size());
  distill::evaluate(*m.model, windows, warm);
  Cell cell{.k = call.dials.k, .query_skip = call.dials.query_skip};
  reset_peak();
  const auto start = std::chrono::steady_clock::now();
  cell.perplexity = distill::evaluate(*m.model, windows, call).value();
  const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
  const int64_t count =
      call.max_windows ? std::min(call.max_windows, windows.size()) : windows.size();
  cell.ms = time.count() / double(count);
  cell.bytes = double(allocator_stats().peak_live - of_teacher);
  if (!teacher.path.empty()) cell.recall = recall_of(m, windows, call, teacher);
  return cell;
}

// One line for a cell: the table's columns are as wide as their titles, the file's are tabs apart.
std::string line_of(const Cell& c, bool with_recall, const char* format, const char* recall) {
  char text[160];
  int n = std::snprintf(text, sizeof text, format, (long long)c.k, (long long)c.query_skip,
                        c.perplexity, c.ms, c.bytes / 1e6);
  if (with_recall) std::snprintf(text + n, sizeof text - size_t(n), recall, c.recall);
  return std::string(text) + "\n";
}

int Sweep::run(const RunContext& context) {
  check(out.empty() || !std::filesystem::exists(out), out, ": exists already");
  nn::LoadedModel m = nn::load_model(model);
  warn_of(m);
  check(m.model->attention_traits().sparse, "sweep: attention '", m.config.attention,
        "' has no dials");
  refuse_idle_dials(context, *m.model);
  std::unique_ptr<data::Tokenizer> tokenizer = tokenizer_of(m);
  const int64_t positions = m.config.shape().max_positions;
  const int64_t window = sequence_length ? sequence_length : positions;
  check(window <= positions, "sweep: sequence_length ", window, " is longer than the model's ",
        positions, " positions");
  auto windows = windows_of(load_texts(data, *tokenizer, window), window, 0);
  if (k.empty()) {
    data::Schema settings;
    m.config.method().describe(settings);
    k = {settings.to_json()["k"].get<int64_t>()};
  }
  const bool recall = !teacher.empty();
  Teacher beside{.path = teacher};
  std::string tsv = join("k\tquery_skip\tperplexity\tms_per_window\tmegabytes",
                         recall ? "\tmask_recall" : "", "\n");
  std::printf("%6s %10s %12s %14s %10s%s\n", "k", "query-skip", "perplexity", "ms a window", "MB",
              recall ? "  mask recall" : "");
  for (int64_t keys : k) {
    for (int64_t skip : query_skip) {
      Cell cell = evaluate_cell(m, *windows,
                                {.batch_size = batch_size,
                                 .max_windows = max_windows,
                                 .dials = {.k = keys, .query_skip = skip}},
                                beside);
      std::printf("%s",
                  line_of(cell, recall, "%6lld %10lld %12.4f %14.2f %10.1f", "  %11.3f").c_str());
      std::fflush(stdout);
      tsv += line_of(cell, recall, "%lld\t%lld\t%.6f\t%.3f\t%.3f", "\t%.4f");
    }
  }
  if (!out.empty()) data::write_file_atomic(out, tsv);
  return 0;
}

const RegisterSubcommand<Sweep> registration("sweep", "Evaluate a grid of k and query skipping");

}  // namespace
}  // namespace brine
