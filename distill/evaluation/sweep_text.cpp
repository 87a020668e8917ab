// A sweep over text files: what it is, its floors and ceilings, its table and its TSV file.
#include "distill/evaluation/sweep_text.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "data/io/file_io.h"
#include "distill/evaluation/health/mask_health.h"
#include "distill/evaluation/recall_observer.h"
#include "distill/evaluation/tasks/task_report.h"
#include "distill/ranks/exchange.h"
#include "tensor/comm/shared_work.h"
#include "tensor/device/allocator.h"

namespace brine::distill {

namespace {

// The teacher, from the first recall on, and the bytes that are alive without it.
struct SweepTeacher {
  std::string path;  // empty: none
  std::unique_ptr<RecallObserver> recall = {};
  int64_t live_without = 0;
};

// In a separate pass: the teacher's time and memory do not count for the model.
double recall_of(const nn::LoadedModel& m, const WindowSource& windows, EvaluateCall call,
                 SweepTeacher& teacher) {
  if (!teacher.recall) {
    teacher.live_without = allocator_stats().live;
    teacher.recall = RecallObserver::make(teacher.path, m);
  }
  teacher.recall->restart(call.options.k);
  call.observer = teacher.recall.get();
  call.before_batch = [&](const Batch& batch) { teacher.recall->begin(batch); };
  call.measures = {teacher.recall.get()};
  evaluate(*m.model, windows, call);
  return teacher.recall->rows().back().mean[recall::kMask];
}

SweepCell measure(const nn::LoadedModel& m, const WindowSource& windows, const EvaluateCall& call,
                  SweepTeacher& teacher) {
  const int64_t of_teacher = teacher.recall ? allocator_stats().live - teacher.live_without : 0;
  EvaluateCall warm = call;  // fills caches before timing starts
  warm.max_windows = std::min(call.batch_size, windows.size());
  warm.ranks = nullptr;
  evaluate(*m.model, windows, warm);
  SweepCell cell{.k = call.options.k, .query_skip = call.options.query_skip};
  cell.keys_read = keys_read(*m.model, windows.in_order(0, 1).ids, call.options);
  reset_peak();
  const auto start = std::chrono::steady_clock::now();
  cell.perplexity = evaluate(*m.model, windows, call).value();
  const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
  const int64_t count =
      call.max_windows ? std::min(call.max_windows, windows.size()) : windows.size();
  cell.ms = time.count() / double(count);
  cell.bytes = double(allocator_stats().peak_live - of_teacher);
  if (!teacher.path.empty()) cell.recall = recall_of(m, windows, call, teacher);
  return cell;
}

// The k to measure at. The model's attention must be sparse.
std::vector<int64_t> ks_of(const nn::LoadedModel& model, const SweepRequest& request) {
  check(model.model->attention_traits().sparse, "sweep: attention '", model.config.attention,
        "' keeps every key");
  if (!request.k.empty()) return request.k;
  const std::optional<int64_t> k = kept_keys_of(model.config, 0);
  check(k.has_value(), "sweep: attention '", model.config.attention, "' has no k; name --k");
  return {*k};
}

EvaluateCall call_of(const SweepRequest& request, int64_t k, int64_t skip = 1) {
  return {.batch_size = request.batch_size,
          .max_windows = request.max_windows,
          .options = {.k = k, .query_skip = skip},
          .ranks = request.ranks};
}

// Every cell, passed on as soon as it is measured: for each k every query_skip.
void sweep(const nn::LoadedModel& model, const WindowSource& windows, const SweepRequest& request,
           const std::function<void(const SweepCell&)>& measured) {
  SweepTeacher teacher{.path = request.teacher};
  for (int64_t keys : ks_of(model, request)) {
    for (int64_t skip : request.query_skip) {
      measured(measure(model, windows, call_of(request, keys, skip), teacher));
    }
  }
}

// A student next to its floors and ceilings at equal keys read: the teacher under its top keys,
// best columns or blocks, sinks + recent keys and the most recent keys, in perplexity and mask
// recall.

struct FloorRow {
  std::string name;
  int64_t k = 0;  // 0: all keys
  double keys_read = 0;
  std::optional<double> perplexity;   // none for random keys
  std::optional<double> ratio;        // perplexity over the dense teacher's
  std::optional<double> recall;       // none for the dense teacher
  std::optional<MaskHealth> student;  // of the student's mask
};

// A way to choose k keys from the teacher's attention.
struct Floor {
  const char* name;
  const char* method;  // attention method; null: no perplexity
  recall::Way way;
  int64_t sinks = -1;  // of the method recent: first blocks
};
constexpr Floor kTopKeys = {"teacher, top keys", "top", recall::kTopKeys},
                kBestColumns = {"teacher, best columns", "best-columns", recall::kBestColumns},
                kRandom = {"random keys", nullptr, recall::kRandom},
                kWindows[] = {{"sinks + most recent", "recent", recall::kSinksRecent, 1},
                              {"teacher, most recent", "recent", recall::kRecent, 0}};

// What a mask of chosen blocks has.
constexpr const char* kBlockKeys[] = {"block", "tile", "sinks", "local"};

struct Table {
  const nn::LoadedModel& student;
  const WindowSource& windows;
  const SweepRequest& request;
  const std::function<void(const FloorRow&)>& measured;
  nn::LoadedModel teacher = nn::load_model(request.teacher);
  data::Json student_settings = data::schema_of(student.config.method()).to_json();
  double dense = 0;

  void row(const std::string& name, int64_t k, std::optional<double> perplexity,
           std::optional<double> recall, double keys_read,
           std::optional<MaskHealth> health = {}) const {
    std::optional<double> ratio;
    if (perplexity) ratio = *perplexity / dense;
    measured({.name = name,
              .k = k,
              .keys_read = keys_read,
              .perplexity = perplexity,
              .ratio = ratio,
              .recall = recall,
              .student = health});
  }

  void measure_dense() {
    dense = evaluate(*teacher.model, windows, call_of(request, 0)).value();
    row("teacher, dense", 0, dense, {}, keys_of_all(teacher.config.shape(), windows.window()));
  }

  // The student's perplexity and mask; `all` receives the sums of all layers.
  void measure_student(int64_t k, int64_t skip, Recall& all) const {
    std::string name = "student";
    if (skip > 1) name += join(", query_skip ", skip);
    measure_mask(name, student, nn::load_model(request.teacher), call_of(request, k, skip), all);
  }

  // The best blocks that could be chosen, in the form of the student's.
  void measure_best_blocks(int64_t k) {
    data::Json settings = data::Json::object();
    for (const char* key : kBlockKeys) settings[key] = student_settings.at(key);
    use_attention(teacher, "best-blocks", settings);
    Recall all;
    measure_mask("teacher, best blocks", teacher, nn::load_model(request.teacher),
                 call_of(request, k), all);
  }

  // The perplexity of `model` and its mask next to a dense one.
  void measure_mask(const std::string& name, const nn::LoadedModel& model, nn::LoadedModel of_dense,
                    EvaluateCall call, Recall& all) const {
    const int64_t k = call.options.k;
    RecallObserver observer(std::move(of_dense), model, k);
    call.observer = &observer;
    call.before_batch = [&](const Batch& batch) { observer.begin(batch); };
    call.measures = {&observer};
    const double perplexity = evaluate(*model.model, windows, call).value();
    const MaskHealth health = mask_health(observer.layers());
    all = {};
    for (const Recall& layer : observer.layers()) all += layer;
    row(name, k, perplexity, health.recall, all.keys_read(), health);
  }

  void measure_floor(const Floor& floor, const std::string& name, int64_t k,
                     const data::Json& settings, const Recall& all) {
    if (!floor.method)
      return row(name, k, {}, all.mean(floor.way), keys_of_window(k, windows.window()));
    use_attention(teacher, floor.method, settings);
    const double perplexity = evaluate(*teacher.model, windows, call_of(request, k)).value();
    const double read = keys_read(*teacher.model, windows.in_order(0, 1).ids, {.k = k});
    row(name, k, perplexity, all.mean(floor.way), read);
  }

  // Those next to a student with k keys, whose masks are `all`.
  void measure_floors(int64_t k, const Recall& all) {
    const int64_t step = student.model->attention_traits().k_step, T = windows.window();
    const int64_t as_many = step > 1 ? k_of_window(all.keys_read(), {&T, 1}) : k;
    if (std::ranges::all_of(kBlockKeys, [&](auto* key) { return student_settings.contains(key); }))
      measure_best_blocks(k);
    measure_floor(kTopKeys, kTopKeys.name, as_many, data::Json::object(), all);
    if (step == 1) {
      const int64_t columns = student.config.method().mask().columns.value_or(64);
      measure_floor(kBestColumns, kBestColumns.name, k, {{"columns", columns}}, all);
    }
    const int64_t block = step > 1 ? step : recall::kSinks;
    const int64_t of_window =
        step > 1 ? k_of_window(all.keys_read(), {&T, 1}, block) : (k + block - 1) / block * block;
    for (const Floor& window : kWindows) {
      const int64_t sinks = std::min(window.sinks, of_window / block - 1);
      measure_floor(window, window.sinks ? join("teacher, ", block, " ", window.name) : window.name,
                    of_window, {{"block", block}, {"sinks", sinks}}, all);
    }
    measure_floor(kRandom, kRandom.name, as_many, data::Json::object(), all);
  }
};

std::string number(const char* format, const std::optional<double>& x) {
  char text[400] = "";  // a diverged model has up to 309 digits
  if (x) std::snprintf(text, sizeof text, format, *x);
  return text;
}

std::string cells(const FloorRow& r, const std::string& between) {
  std::optional<double> least, tenth, hit;
  if (r.student) {
    least = r.student->least;
    tenth = r.student->tenth;
    hit = r.student->top_hit;
  }
  std::string out = r.name + between + (r.k ? std::to_string(r.k) : "all");
  out += between + number("%.1f", r.keys_read);
  out += between + number("%.4f", r.perplexity) + between + number("%.4f", r.ratio);
  for (const auto& x : {r.recall, least, tenth, hit}) out += between + number("%.3f", x);
  return out;
}

// Every row, passed on as soon as it is measured: the dense teacher, then for each k the student
// for each query_skip, the teacher under its top keys, best columns, sinks + recent, most recent
// keys, and random keys. Rows of a student with blocks read more than k keys, those of their tile's
// list: next to it are the best blocks with the same sharing, and the k of the other rows is that
// with which they read as many keys. Sinks and recent keys are whole blocks of such a student's
// size, of others of 4 keys. `student` is calibrated if it must be.
void floors(const nn::LoadedModel& student, const WindowSource& windows,
            const SweepRequest& request, const std::function<void(const FloorRow&)>& measured) {
  check(!request.teacher.empty() && request.teacher != kSelf,
        "sweep: --floors needs the base model as --teacher");
  const std::vector<int64_t> k = ks_of(student, request);
  Table table{student, windows, request, measured};
  table.measure_dense();
  for (int64_t keys : k) {
    Recall all;
    for (int64_t skip : request.query_skip) table.measure_student(keys, skip, all);
    table.measure_floors(keys, all);
  }
}

// Of a Markdown table, and of a TSV file.
constexpr const char* kFloorTitle =
    "| attention | k | keys read | perplexity | over dense | mask recall | least head | "
    "10th percentile | top-1 hit |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
constexpr const char* kFloorTsvTitle =
    "attention\tk\tkeys_read\tperplexity\tover_dense\tmask_recall\tleast_head\tp10\ttop1_hit\n";

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
  std::string tsv = kFloorTsvTitle;
  table << kFloorTitle << std::flush;
  floors(model, windows, what.grid, [&](const FloorRow& row) {
    table << "| " << cells(row, " | ") << " |\n" << std::flush;
    tsv += cells(row, "\t") + "\n";
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
  if (what.floors) return write_floors(model, *windows, what, table);
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
