// brine bench: the speed of attention methods, whole training steps and generation.
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/bench/suites.h"
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
    s.field("quick", quick, "Tiny sizes, one run each: checks that everything runs");
  }

  void refuse_unused_files(const RunContext& context) const {
    auto runs = [&](auto... of) { return (std::ranges::count(request.what, of) || ...); };
    const bool models = runs("trained", "generate"), blocks = runs("attention", "breakdown");
    auto refuse = [&](std::initializer_list<const char*> keys, const std::string& suites) {
      refuse_unused(context, keys, "without the suite " + suites);
    };
    if (!models) refuse({"model", "data"}, "generate or trained");
    if (!runs("generate")) refuse({"weights"}, "generate");
    for (const char* key : bench::kAttentionKeys)
      if (!runs("attention")) refuse({key}, "attention");
    if (!models && !blocks) refuse({"tokens"}, "attention, breakdown, generate or trained");
    if (!blocks) refuse({"methods"}, "attention or breakdown");
  }

  int run(const RunContext& context) {
    refuse_unused_files(context);
    if (request.what.empty()) {
      std::cout << bench::list_of_suites();
      return 0;
    }
    request.validate();
    bench::set_quick(quick);
    bench::Report report(json ? bench::Report::Form::json : bench::Report::Form::table);
    for (const bench::Suite* suite : bench::chosen_suites(request)) {
      report.run(*suite, request);
      trim();
    }
    if (json) std::cout << json_text(report.json(), 2) << std::endl;
    return report.failed() ? 1 : 0;
  }
};
const RegisterSubcommand<Bench> registration("bench", "Measure attention, training and generation",
                                             {"brine bench attention", "docs/results.md"});

}  // namespace
}  // namespace brine
