// brine verify: compares the SEA block with golden files, stage by stage.
#include <cstdio>
#include <iostream>

#include "apps/cli/program.h"
#include "apps/verify/golden.h"
#include "distill/evaluation/evaluate_text.h"

namespace brine {
namespace {

struct Verify {
  std::vector<std::string> golden;
  enum class Types { f32, f64, both } dtype = Types::both;
  distill::AttentionPath path = distill::AttentionPath::sparse;
  double atol = -1, rtol = -1;

  void describe(data::Schema& s) {
    s.field("golden", golden, "Golden files", {.required = true, .positional = true});
    s.choice("dtype", dtype, {{Types::f32, "f32"}, {Types::f64, "f64"}, {Types::both, "both"}},
             "Type to compute in");
    s.choice("path", path, distill::kAttentionPaths, "dense: the T x T reference");
    s.field("atol", atol, "Absolute tolerance; negative: 1e-12 in f64, 1e-6 in f32");
    s.field("rtol", rtol, "Tolerance relative to the largest value; negative: 1e-10, 1e-4",
            {.alias = "tolerance"});
  }

  int run(const RunContext& context) {
    int64_t compared = 0, passed = 0, skipped = 0;
    for (const std::string& file : golden) {
      for (Dtype type : {Dtype::f64, Dtype::f32}) {
        const Types wanted = type == Dtype::f64 ? Types::f64 : Types::f32;
        if (dtype != Types::both && dtype != wanted) continue;
        GoldenTolerance tolerance = GoldenTolerance::of(type);
        if (atol >= 0) tolerance.atol = atol;
        if (rtol >= 0) tolerance.rtol = rtol;
        const GoldenReport report =
            run_golden(file, type, tolerance, path == distill::AttentionPath::dense);
        print(join(file, " ", type, ": "), report, context.quiet);
        skipped += !report.skipped.empty();
        compared += report.skipped.empty();
        passed += report.skipped.empty() && report.ok();
      }
    }
    check(compared > 0, "nothing was compared, all ", skipped, " runs were skipped");
    std::cout << passed << " of " << compared << " ok";
    if (skipped) std::cout << ", " << skipped << " skipped";
    std::cout << "\n";
    return passed == compared ? 0 : 1;
  }

  // Every line names the file and the type.
  static void print(const std::string& which, const GoldenReport& report, bool quiet) {
    if (!report.skipped.empty()) {
      std::cout << which << "skipped: " << report.skipped << "\n";
      return;
    }
    std::cout << which << (report.ok() ? "ok" : "OUT OF TOLERANCE") << ", " << report.rows.size()
              << " datasets\n";
    for (const GoldenRow& row : report.rows) {
      if (quiet && row.ok()) continue;
      char numbers[96];
      std::snprintf(numbers, sizeof numbers, "%-32s error %.2e  bound %.2e", row.dataset.c_str(),
                    row.error, row.bound);
      std::cout << which << numbers << (row.ok() ? "" : "  <-- out of tolerance") << "\n";
    }
  }
};
const RegisterSubcommand<Verify> registration("verify", "Compare the SEA block with golden files");

}  // namespace
}  // namespace brine
