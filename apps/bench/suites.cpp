// The suites of `brine bench`: which there are, what each needs, which of them a call runs; their
// rows as a table and as JSON.
#include "apps/bench/suites.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/terminal/terminal.h"
#include "data/io/file_io.h"
#include "data/io/human.h"
#include "nn/attention/attention.h"
#include "nn/io/model_io.h"
#include "tensor/base/error.h"
#include "tensor/base/parallel.h"
#include "tensor/cpu/core/onednn.h"
#include "tensor/device/allocator.h"

namespace brine::bench {

namespace {

// "0.62", "12.3", "4567"
std::string figure(double x) {
  char text[32];
  const int digits = x != 0 && x < 10 ? 2 : (x < 100 ? 1 : 0);
  std::snprintf(text, sizeof text, "%.*f", digits, x);
  return text;
}

void print_row(const BenchRow& row) {
  auto shown = [](double x, double scale = 1) { return x ? figure(x * scale) : std::string("-"); };
  std::printf("%-34s %-22s %10s %18s %7s %7s %11s", row.name.c_str(), row.shape.c_str(),
              figure(row.ms).c_str(), (shown(row.rate) + " " + row.unit).c_str(),
              row.share ? (figure(100 * row.share) + " %").c_str() : "-", shown(row.ratio).c_str(),
              row.peak ? human_bytes(double(row.peak)).c_str() : "-");
  for (const auto& [name, value] : row.notes) {
    std::printf("  %s %s", name.c_str(), figure(value).c_str());
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

data::Json to_json(const char* suite, const BenchRow& row) {
  data::Json out = {{"bench", suite},   {"name", row.name}, {"shape", row.shape}, {"ms", row.ms},
                    {"rate", row.rate}, {"unit", row.unit}, {"share", row.share}};
  if (row.ratio) out["ratio"] = row.ratio;
  if (row.peak) out["peak_bytes"] = row.peak;
  for (const auto& [name, value] : row.notes) out[name] = value;
  return out;
}

std::string cpu_model(const std::string& cpuinfo) {
  std::istringstream in(cpuinfo);
  std::string implementer, part;
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(':'), end = line.find_last_not_of(" \t", colon - 1);
    if (colon == std::string::npos || end == std::string::npos) continue;
    const std::string key = line.substr(0, end + 1);
    const size_t start = line.find_first_not_of(' ', colon + 1);
    const std::string value = start == std::string::npos ? "" : line.substr(start);
    if (key == "model name" && !value.empty()) return value;
    if (key == "CPU implementer" && implementer.empty()) implementer = value;
    if (key == "CPU part" && part.empty()) part = value;
  }
  if (implementer.empty()) return "unknown";
  return join("arm64, implementer ", implementer, ", part ", part);
}

Report::Report(Form form)
    : form_(form),
      cpu_(cpu_model(data::read_start("/proc/cpuinfo", 1 << 20))),
      threads_(threads()) {
  if (form_ == Form::json) return;
  std::printf("%s, %d threads; medians; share: of the rate of a product of matrices\n",
              cpu_.c_str(), threads_);
  std::printf("%-34s %-22s %10s %18s %7s %7s %11s\n", "name", "shape", "ms", "rate", "share",
              "ratio", "peak memory");
}

// The rows and failures of one suite.
class Report::Sink : public RowSink {
 public:
  Sink(Report& report, const Suite& suite) : report_(report), suite_(suite) {}
  void add(const BenchRow& row) override {
    if (report_.form_ == Form::table) print_row(row);
    report_.rows_.emplace_back(&suite_, row);
  }

 protected:
  void fail(const BenchFailure& failure) override { report_.fail(suite_, failure); }

 private:
  Report& report_;
  const Suite& suite_;
};

void Report::fail(const Suite& suite, const BenchFailure& failure) {
  std::string where = join("bench ", suite.name);
  for (const std::string& part : {failure.name, failure.shape}) {
    if (!part.empty()) where += ", " + part;
  }
  log_warning(where, ": ", failure.error);
  failures_.emplace_back(&suite, failure);
}

void Report::run(const Suite& suite, const BenchRequest& request) {
  if (!lost_.empty()) return fail(suite, {.error = lost_});
  Sink rows(*this, suite);
  try {
    suite.run(request, rows);
  } catch (const DeviceLost& e) {
    lost_ = e.what();
    fail(suite, {.error = lost_});
  } catch (const std::exception& e) {
    fail(suite, {.error = e.what()});
  }
}

data::Json Report::json() const {
  data::Json rows = data::Json::array(), failures = data::Json::array();
  for (const auto& [suite, why] : failures_)
    failures.push_back(
        {{"bench", suite->name}, {"name", why.name}, {"shape", why.shape}, {"error", why.error}});
  for (const auto& [suite, row] : rows_) rows.push_back(to_json(suite->name, row));
  return {{"quick", is_quick()},
          {"cpu", cpu_},
          {"onednn", onednn::version()},
          {"threads", threads_},
          {"device", join(default_device())},
          {"peak_reserved_bytes", allocator_stats().peak_reserved},
          {"rows", rows},
          {"failures", failures}};
}

namespace {

const Suite kSuites[] = {
    {"attention", bench_attention, false, "a block of each method by length, forward and backward"},
    {"breakdown", bench_breakdown, false, "time and memory of a block by component"},
    {"train", bench_train, false,
     "whole steps: an encoder layer, the distillation of a small decoder"},
    {"trained", bench_trained, true, "the blocks of a model on a text; needs --model and --data"},
    {"generate", bench_generate, true, "a model token by token; needs --model and --data"}};

bool is_named(const BenchRequest& request, const Suite& suite) {
  return std::find(request.what.begin(), request.what.end(), suite.name) != request.what.end();
}

}  // namespace

std::vector<std::string> suite_names() {
  std::vector<std::string> names;
  for (const Suite& suite : kSuites) names.push_back(suite.name);
  return names;
}

void BenchRequest::describe(data::Schema& s) {
  s.choice("what", what, suite_names(), "What to measure; none given: lists the benchmarks",
           {.positional = true});
  s.field("model", model,
          "A model, for the suites generate and trained (there a causal one with a mask)");
  attention.describe(s);
  s.choice("weights", weights, nn::kWeightTypes,
           join(nn::kWeightsHelp, "; for the suite generate"));
  s.field("tokens", tokens,
          "Lengths in tokens, for attention, breakdown, generate and trained; none: their own",
          {.min = 16});
  s.field("heads", heads, "Query heads of a block, for the suite attention", {.min = 1});
  s.field("head_size", head_size, "Features of a head, for the suite attention", {.min = 1});
  s.field("k", k, "Kept keys of a row, for attention; 0: 64; of blocks their own", {.min = 0});
  s.field("columns", columns, "Columns of estimates by columns, for the suite attention",
          {.min = 1});
  s.field("kv_heads", kv_heads,
          "Heads of keys and values, for attention; 0: as many as query heads");
  s.field(
      "against", against,
      "Method measured alternately with each, for attention; times_NAME is its time over theirs");
  s.field("bidirectional", bidirectional,
          "Blocks of encoders, which see every token, for the suite attention");
  s.field("forward", forward, "No rows with backward, for the suite attention");
  s.field("methods", methods,
          "Methods for attention and breakdown, by name or row (\"sea light\"); none: all");
  s.field("data", data, "Text file, for the suites generate and trained");
}

void BenchRequest::validate() const {
  // Unknown methods are refused.
  for (const std::string& name : methods) nn::attention_method(name.substr(0, name.find(' ')));
  const bool has_files = !model.empty() && !data.empty();
  for (const Suite& suite : kSuites) {
    check(has_files || !suite.needs_model || !is_named(*this, suite),
          "bench: generate and trained need --model RUN and --data TEXT");
  }
  check(data.empty() == model.empty(), "bench: --data goes together with --model");
}

std::vector<const Suite*> chosen_suites(const BenchRequest& request) {
  std::vector<const Suite*> out;
  for (const Suite& suite : kSuites) {
    if (is_named(request, suite)) out.push_back(&suite);
  }
  return out;
}

std::string list_of_suites() {
  std::string out;
  for (const Suite& suite : kSuites) {
    const std::string name = suite.name;
    out += "  " + name + std::string(12 - name.size(), ' ') + suite.about + "\n";
  }
  return out + "brine bench NAME... measures these; --quick checks that they run\n";
}

}  // namespace brine::bench
