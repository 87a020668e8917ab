// brine bench: the speed of kernels, attention methods and whole training steps.
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/bench/report.h"
#include "apps/bench/suites.h"
#include "apps/cli/program.h"
#include "apps/cli/terminal.h"
#include "apps/cli/unused_flags.h"
#include "data/io/json.h"
#include "tensor/device/allocator.h"
#include "tensor/parallel.h"

namespace brine {
namespace {

struct Bench {
  std::vector<std::string> what;
  std::string model, tokenizer, data;
  std::vector<int64_t> tokens;
  bool json = false, quick = false;

  void describe(data::Schema& s) {
    s.choice("what", what, bench::suite_names(), "What to measure; none given: everything",
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
            "Tiny sizes, one run each: checks that everything runs, measures nothing");
  }

  // Throws for inconsistent flags.
  void check_flags(const RunContext& context) const {
    if (!what.empty() && !named("tokenizer"))
      refuse_unused(context, {"tokenizer"}, "without the suite tokenizer");
    if (!what.empty() && !named("trained"))
      refuse_unused(context, {"model", "tokens"}, "without the suite trained");
    if (tokenizer.empty() && model.empty() && !named("tokenizer") && !named("trained"))
      refuse_unused(context, {"data"}, "without the suite tokenizer or trained");
    check(!named("tokenizer") || (!tokenizer.empty() && !data.empty()),
          "bench: tokenizer needs --tokenizer DIR and --data TEXT");
    check(!named("trained") || (!model.empty() && !data.empty()),
          "bench: trained needs --model RUN and --data TEXT");
    check(data.empty() == (tokenizer.empty() && model.empty()),
          "bench: --data needs --tokenizer or --model");
  }

  bool named(const char* suite) const {
    return std::find(what.begin(), what.end(), suite) != what.end();
  }

  int run(const RunContext& context) {
    check_flags(context);
    bench::set_quick(quick);
    bench::check_suites(what);
    data::Json out = {
        {"quick", quick}, {"threads", threads()}, {"triad_gb_per_s", bench::triad_bandwidth()}};
    if (!json) {
      std::printf("%d threads, triad %.1f GB/s; medians; share: of the measured limit\n", threads(),
                  bench::triad_bandwidth());
      bench::print_title();
    }
    data::Json rows = data::Json::array();
    auto show = [&](const char* name, const std::vector<bench::BenchRow>& measured) {
      for (const bench::BenchRow& row : measured) {
        if (!json) bench::print_row(row);
        rows.push_back(bench::to_json(name, row));
      }
      trim();
    };
    for (const bench::Suite& suite : bench::suites()) {
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
