// brine bench: how fast the kernels, the attention methods and whole training steps are.
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/bench/bench.h"
#include "apps/cli/idle.h"
#include "apps/cli/program.h"
#include "apps/cli/terminal.h"
#include "data/io/json.h"
#include "tensor/device/allocator.h"
#include "tensor/parallel.h"

namespace brine {
namespace {

using bench::BenchRow;

struct Suite {
  const char* name;
  std::vector<BenchRow> (*run)();
  bool anywhere = false;  // on a device, too
};
const Suite kSuites[] = {{"pointwise", bench::bench_pointwise},
                         {"gemm", bench::bench_gemm},
                         {"conv", bench::bench_conv},
                         {"attention", bench::bench_attention, true},
                         {"breakdown", bench::bench_breakdown, true},
                         {"sparse", bench::bench_sparse, true},
                         {"train", bench::bench_train, true},
                         {"decode", bench::bench_decode, true},
                         {"streamed", bench::bench_streamed, true},
                         {"encoder", bench::bench_encoder, true},
                         {"decoder", bench::bench_decoder, true},
                         {"coo", bench::bench_coo},
                         {"paper-latency", bench::bench_paper_latency, true}};

// The suites that measure a device as well as the CPU; the others hold kernels of the CPU against
// its own limits.
void check_suites(const std::vector<std::string>& what) {
  if (!default_device().is_cuda()) return;
  for (const std::string& name : what) {
    const auto* suite = std::find_if(std::begin(kSuites), std::end(kSuites),
                                     [&](const Suite& s) { return s.name == name; });
    // trained runs anywhere, and a tokenizer is the CPU's wherever models compute.
    check(suite == std::end(kSuites) || suite->anywhere, "bench: ", name,
          " measures the CPU; add --device cpu");
  }
}

std::vector<std::string> suite_names() {
  std::vector<std::string> names;
  for (const Suite& suite : kSuites) names.push_back(suite.name);
  names.insert(names.end(), {"trained", "tokenizer"});  // those that need files
  return names;
}

// "0.62", "12.3", "4567"
std::string figure(double x) {
  char text[32];
  const int digits = x != 0 && x < 10 ? 2 : (x < 100 ? 1 : 0);
  std::snprintf(text, sizeof text, "%.*f", digits, x);
  return text;
}

void print_title() {
  std::printf("%-34s %-22s %10s %18s %7s %7s %11s\n", "name", "shape", "ms", "rate", "share",
              "ratio", "peak memory");
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

data::Json to_json(const char* suite, const BenchRow& row) {
  data::Json out = {{"bench", suite},   {"name", row.name}, {"shape", row.shape}, {"ms", row.ms},
                    {"rate", row.rate}, {"unit", row.unit}, {"share", row.share}};
  if (row.ratio) out["ratio"] = row.ratio;
  if (row.peak) out["peak_bytes"] = row.peak;
  for (const auto& [name, value] : row.notes) out[name] = value;
  return out;
}

struct Bench {
  std::vector<std::string> what;
  std::string model, tokenizer, data;
  std::vector<int64_t> tokens;
  bool json = false, quick = false;

  void describe(data::Schema& s) {
    s.choice("what", what, suite_names(), "What to measure; none given: everything",
             {.positional = true});
    s.field("model", model, "A trained causal student, for the suite trained");
    s.field("tokens", tokens, "Lengths for the suite trained; none given: 2048 to 131072",
            {.min = 16});
    s.field("tokenizer", tokenizer, "Tokenizer directory, for the suite tokenizer");
    s.field("data", data, "Text file, for the suites trained and tokenizer");
    s.field(
        "json", json,
        "Print one JSON object: quick, threads, triad_gb_per_s, device, peak_reserved_bytes and "
        "rows of bench, name, shape, ms, rate, unit, share");
    s.field("quick", quick,
            "Tiny sizes, one run each: shows that all of it runs, measures nothing");
  }

  bool named(const char* suite) const {
    return std::find(what.begin(), what.end(), suite) != what.end();
  }

  int run(const RunContext& context) {
    if (!what.empty() && !named("tokenizer"))
      refuse_idle(context, {"tokenizer"}, "without the suite tokenizer");
    if (!what.empty() && !named("trained"))
      refuse_idle(context, {"model", "tokens"}, "without the suite trained");
    if (tokenizer.empty() && model.empty() && !named("tokenizer") && !named("trained"))
      refuse_idle(context, {"data"}, "without the suite tokenizer or trained");
    check(!named("tokenizer") || (!tokenizer.empty() && !data.empty()),
          "bench: tokenizer needs --tokenizer DIR and --data TEXT");
    check(!named("trained") || (!model.empty() && !data.empty()),
          "bench: trained needs --model RUN and --data TEXT");
    check(data.empty() == (tokenizer.empty() && model.empty()),
          "bench: --data goes together with --tokenizer or --model");
    bench::set_quick(quick);
    check_suites(what);
    data::Json out = {
        {"quick", quick}, {"threads", threads()}, {"triad_gb_per_s", bench::triad_bandwidth()}};
    if (!json) {
      std::printf("%d threads, triad %.1f GB/s; medians; share: of the measured limit\n", threads(),
                  bench::triad_bandwidth());
      print_title();
    }
    data::Json rows = data::Json::array();
    auto show = [&](const char* name, const std::vector<BenchRow>& measured) {
      for (const BenchRow& row : measured) {
        if (!json) print_row(row);
        rows.push_back(to_json(name, row));
      }
      trim();
    };
    for (const Suite& suite : kSuites) {
      if (!what.empty() && !named(suite.name)) continue;
      if (default_device().is_cuda() && !suite.anywhere) continue;
      log_detail("bench ", suite.name);
      show(suite.name, suite.run());
    }
    if (!model.empty() && !data.empty() && (what.empty() || named("trained")))
      show("trained", bench::bench_trained(model, data, tokens));
    if (!tokenizer.empty() && !data.empty() && (what.empty() || named("tokenizer")))
      show("tokenizer", bench::bench_tokenizer(tokenizer, data));
    if (!json) return 0;
    out["device"] = join(default_device());
    out["peak_reserved_bytes"] = allocator_stats().peak_reserved;
    out["rows"] = rows;
    std::cout << json_text(out, 2) << std::endl;
    return 0;
  }
};

const RegisterSubcommand<Bench> registration("bench", "Measure kernels, attention and training");

}  // namespace
}  // namespace brine
