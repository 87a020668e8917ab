// brine bench: the speed of kernels, attention methods and whole training steps.
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/bench/report.h"
#include "apps/cli/terminal.h"
#include "apps/cli/unused_flags.h"
#include "data/io/json.h"
#include "tensor/device/allocator.h"

namespace brine {
namespace {

struct Bench {
  bench::BenchRequest request;
  bool json = false, quick = false;

  void describe(data::Schema& s) {
    request.describe(s);
    s.field("json", json, bench::Report::kJsonHelp);
    s.field("quick", quick,
            "Tiny sizes, one run each: checks that everything runs, measures nothing");
  }

  void refuse_unused_files(const RunContext& context) const {
    const bool all = request.what.empty();
    auto runs = [&](const char* suite) { return all || std::ranges::count(request.what, suite); };
    const bool models = runs("trained") || runs("generate"), tokenizer = runs("tokenizer");
    const bool blocks = runs("attention") || runs("breakdown") || runs("paper-latency");
    if (!tokenizer) refuse_unused(context, {"tokenizer"}, "without the suite tokenizer");
    if (!models) refuse_unused(context, {"model"}, "without the suite generate or trained");
    if (!runs("generate")) refuse_unused(context, {"weights"}, "without the suite generate");
    const std::string of = "without the suite attention", any = of + ", breakdown or paper-latency";
    if (!runs("attention"))
      refuse_unused(context, {"heads", "kv_heads", "k", "against", "bidirectional"}, of);
    if (!models && !blocks) refuse_unused(context, {"tokens"}, any + ", generate or trained");
    if (!blocks) refuse_unused(context, {"methods"}, any);
    if (request.tokenizer.empty() && request.model.empty() && (all || (!tokenizer && !models)))
      refuse_unused(context, {"data"}, "without the suite generate, tokenizer or trained");
  }

  int run(const RunContext& context) {
    refuse_unused_files(context);
    request.validate();
    bench::set_quick(quick);
    bench::Report report(json ? bench::Report::Form::json : bench::Report::Form::table);
    for (const bench::Suite* suite : bench::chosen_suites(request)) {
      log_detail("bench ", suite->name);
      report.run(*suite, request);
      trim();
    }
    if (json) std::cout << json_text(report.json(), 2) << std::endl;
    return report.failed() ? 1 : 0;
  }
};
const RegisterSubcommand<Bench> registration(
    "bench", "Measure kernels, attention and training",
    {"brine bench attention --methods \"sea blocks\" --against flash --tokens 8192",
     "docs/results.md"});

}  // namespace
}  // namespace brine
