// The table of a student and its floors.
#include "distill/evaluation/floors.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "distill/evaluation/evaluate_text.h"
#include "distill/evaluation/recall_observer.h"
#include "distill/evaluation/tasks/task_report.h"

namespace brine::distill {
namespace {

// A way to choose k keys from the teacher's attention.
struct Floor {
  const char* name;
  const char* method;  // attention method; null: no perplexity
  int64_t sinks;
  bool columns;  // in as many columns as the student's
  recall::Way way;
};
constexpr Floor kCeilings[] = {
    {"teacher, top keys", "top", 0, false, recall::kTopKeys},
    {"teacher, best columns", "best-columns", 0, true, recall::kBestColumns}};
constexpr Floor kFloors[] = {
    {"teacher, 4 sinks + most recent", "recent", recall::kSinks, false, recall::kSinksRecent},
    {"teacher, most recent", "recent", 0, false, recall::kRecent},
    {"random keys", nullptr, 0, false, recall::kRandom}};

// Keys of a causal row that keeps min(k, visible ones): the mean over T rows.
double mean_kept(int64_t k, int64_t T) {
  const double n = double(std::min(k, T));
  return (n * (n + 1) / 2 + (double(T) - n) * n) / double(T);
}

// The k whose rows keep as many keys on average.
int64_t k_of_mean(double kept, int64_t T) {
  int64_t k = 1;
  while (k < T && mean_kept(k, T) < kept) ++k;
  return k;
}

struct Table {
  const nn::LoadedModel& student;
  const WindowSource& windows;
  const SweepRequest& request;
  const std::function<void(const FloorRow&)>& measured;
  nn::LoadedModel teacher = nn::load_model(request.teacher);
  double dense = 0;

  EvaluateCall call(int64_t k, int64_t skip = 1, int64_t oversample = 0) const {
    return {.batch_size = request.batch_size,
            .max_windows = request.max_windows,
            .options = {.k = k, .query_skip = skip, .oversample = oversample},
            .ranks = request.ranks};
  }

  void row(const std::string& name, int64_t k, std::optional<double> perplexity,
           std::optional<double> recall, double kept, std::optional<MaskHealth> health = {},
           double tile_kept = 0) const {
    std::optional<double> ratio;
    if (perplexity) ratio = *perplexity / dense;
    measured({.name = name,
              .k = k,
              .kept = kept,
              .tile_kept = tile_kept,
              .perplexity = perplexity,
              .ratio = ratio,
              .recall = recall,
              .student = health});
  }

  void measure_dense() {
    dense = evaluate(*teacher.model, windows, call(0)).value();
    row("teacher, dense", 0, dense, {}, 0.5 * double(windows.window() + 1));
  }

  // The student's perplexity and mask; `all` receives the sums of all layers.
  void measure_student(int64_t k, int64_t skip, int64_t oversample, Recall& all) const {
    std::string name = "student";
    if (oversample) name += join(", oversample ", oversample);
    if (skip > 1) name += join(", query_skip ", skip);
    measure_mask(name, student, nn::load_model(request.teacher), call(k, skip, oversample), all);
  }

  // The best blocks that an estimate could choose, in the form of the student's.
  void measure_best_blocks(int64_t k) {
    AttentionSettings settings;
    for (const char* key : {"block", "tile", "sinks", "local"}) {
      settings[key] = settings_of_student()[key].get<int64_t>();
    }
    use_attention(teacher, "best-blocks", settings);
    Recall all;
    measure_mask("teacher, best blocks", teacher, nn::load_model(request.teacher), call(k), all);
  }

  // The perplexity of `model` and its mask next to a dense one.
  void measure_mask(const std::string& name, const nn::LoadedModel& model, nn::LoadedModel of_dense,
                    EvaluateCall call, Recall& all) const {
    const int64_t k = call.options.k;
    RecallObserver observer(std::move(of_dense), model, {.k = k});
    call.observer = &observer;
    call.before_batch = [&](const Batch& batch) { observer.begin(batch); };
    call.measures = {&observer};
    const double perplexity = evaluate(*model.model, windows, call).value();
    const MaskHealth health = mask_health(observer.layers());
    all = {};
    for (const Recall& layer : observer.layers()) all += layer;
    row(name, k, perplexity, health.recall, all.kept_keys(), health, all.kept_of_tile());
  }

  void measure_floor(const Floor& floor, int64_t k, const Recall& all) {
    std::optional<double> perplexity;
    if (floor.method) {
      AttentionSettings settings = {{"sinks", std::min(floor.sinks, k - 1)}};
      if (floor.columns) settings = {{"columns", settings_of_student()["columns"].get<int64_t>()}};
      use_attention(teacher, floor.method, settings);
      perplexity = evaluate(*teacher.model, windows, call(k)).value();
    }
    row(floor.name, k, perplexity, all.mean(floor.way),
        floor.columns ? 0 : mean_kept(k, windows.window()));
  }

  data::Json settings_of_student() const {
    data::Schema keys;
    student.config.method().describe(keys);
    return keys.to_json();
  }
  bool has_blocks() const {
    const data::Json settings = settings_of_student();
    return settings.contains("mask") && settings["mask"] == "blocks";
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
  std::optional<double> kept, tile_kept;
  if (r.kept > 0) kept = r.kept;
  if (r.tile_kept > 0) tile_kept = r.tile_kept;
  for (const auto& x : {kept, tile_kept}) out += between + number("%.0f", x);
  out += between + number("%.4f", r.perplexity) + between + number("%.4f", r.ratio);
  for (const auto& x : {r.recall, least, tenth, hit}) out += between + number("%.3f", x);
  return out;
}

}  // namespace

void floors(const nn::LoadedModel& student, const WindowSource& windows,
            const SweepRequest& request, const std::function<void(const FloorRow&)>& measured) {
  check(!request.teacher.empty(), "sweep: --floors needs --teacher");
  check(student.model->attention_traits().sparse, "sweep: attention '", student.config.attention,
        "' keeps every key");
  std::vector<int64_t> oversample = request.oversample;
  if (oversample.empty()) oversample = {0};
  Table table{student, windows, request, measured};
  table.measure_dense();
  std::vector<int64_t> k = request.k;
  if (k.empty()) k = {kept_keys_of(student.config, 0).value()};
  for (int64_t keys : k) {
    Recall all;
    for (int64_t skip : request.query_skip) {
      for (int64_t each : oversample) table.measure_student(keys, skip, each, all);
    }
    int64_t as_many = keys;
    if (table.has_blocks()) {
      as_many = k_of_mean(all.kept_keys(), windows.window());
      table.measure_best_blocks(keys);
    }
    for (const Floor& floor : kCeilings) {
      if (!floor.columns || !table.has_blocks()) table.measure_floor(floor, as_many, all);
    }
    for (const Floor& floor : kFloors) table.measure_floor(floor, as_many, all);
  }
}

std::string floor_title() {
  return "| attention | k | keys of a row | of its tile | perplexity | over dense | mask recall | "
         "least head | 10th percentile | top-1 hit |\n"
         "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
}

std::string floor_line(const FloorRow& row) { return "| " + cells(row, " | ") + " |\n"; }

std::string floor_tsv_title() {
  return "attention\tk\tkept_keys\ttile_keys\tperplexity\tover_dense\tmask_recall\tleast_"
         "head\tp10\ttop1_hit\n";
}

std::string floor_tsv_line(const FloorRow& row) { return cells(row, "\t") + "\n"; }

}  // namespace brine::distill
