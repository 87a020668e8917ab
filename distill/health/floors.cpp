// The table of a student and its floors.
#include "distill/health/floors.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "distill/evaluation/evaluate_text.h"
#include "distill/evaluation/recall_observer.h"
#include "distill/evaluation/task_report.h"

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
    {"teacher, own top keys", "top", 0, false, recall::kTopKeys},
    {"teacher, best columns", "best-columns", 0, true, recall::kBestColumns}};
constexpr Floor kFloors[] = {
    {"teacher, 4 sinks + most recent", "recent", recall::kSinks, false, recall::kSinksRecent},
    {"teacher, most recent", "recent", 0, false, recall::kRecent},
    {"random keys", nullptr, 0, false, recall::kRandom}};

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
           std::optional<double> recall, std::optional<MaskHealth> health = {}) const {
    std::optional<double> ratio;
    if (perplexity) ratio = *perplexity / dense;
    measured({name, k, perplexity, ratio, recall, health});
  }

  void measure_dense() {
    dense = evaluate(*teacher.model, windows, call(0)).value();
    row("teacher, dense", 0, dense, {});
  }

  // The student's perplexity and mask; `all` receives the sums of all layers.
  void measure_student(int64_t k, int64_t skip, int64_t oversample, Recall& all) const {
    RecallObserver observer(nn::load_model(request.teacher), student, {.k = k});
    EvaluateCall observed = call(k, skip, oversample);
    observed.observer = &observer;
    observed.before_batch = [&](const Batch& batch) { observer.begin(batch); };
    observed.measures = {&observer};
    const double perplexity = evaluate(*student.model, windows, observed).value();
    const MaskHealth health = mask_health(observer.layers());
    all = {};
    for (const Recall& layer : observer.layers()) all += layer;
    std::string name = "student";
    if (oversample) name += join(", oversample ", oversample);
    if (skip > 1) name += join(", query_skip ", skip);
    row(name, k, perplexity, health.recall, health);
  }

  void measure_floor(const Floor& floor, int64_t k, const Recall& all) {
    std::optional<double> perplexity;
    if (floor.method) {
      AttentionSettings settings = {{"sinks", std::min(floor.sinks, k - 1)}};
      if (floor.columns) settings = {{"columns", columns_of_student()}};
      use_attention(teacher, floor.method, settings);
      perplexity = evaluate(*teacher.model, windows, call(k)).value();
    }
    row(floor.name, k, perplexity, all.mean(floor.way));
  }

  int64_t columns_of_student() const {
    data::Schema keys;
    student.config.method().describe(keys);
    return keys.find("columns") ? keys.to_json()["columns"].get<int64_t>() : 0;
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
  if (k.empty()) k = {kept_keys_of(student.config, 0).get<int64_t>()};
  for (int64_t keys : k) {
    Recall all;
    for (int64_t skip : request.query_skip) {
      for (int64_t each : oversample) table.measure_student(keys, skip, each, all);
    }
    for (const Floor& floor : kCeilings) table.measure_floor(floor, keys, all);
    for (const Floor& floor : kFloors) table.measure_floor(floor, keys, all);
  }
}

std::string floor_title() {
  return "| attention | k | perplexity | over dense | mask recall | least head | 10th percentile | "
         "top-1 hit |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n";
}

std::string floor_line(const FloorRow& row) { return "| " + cells(row, " | ") + " |\n"; }

std::string floor_tsv_title() {
  return "attention\tk\tperplexity\tover_dense\tmask_recall\tleast_head\tp10\ttop1_hit\n";
}

std::string floor_tsv_line(const FloorRow& row) { return cells(row, "\t") + "\n"; }

}  // namespace brine::distill
