// brine verify: the SEA block on golden files, stage by stage.
#include <cstdio>
#include <iostream>

#include "apps/cli/program.h"
#include "apps/shared/golden.h"

namespace brine {
namespace {

struct Verify {
  std::vector<std::string> golden;
  std::string dtype = "both", path = "sparse";
  double atol = -1, rtol = -1;

  void describe(data::Schema& s) {
    s.field("golden", golden, "Golden files", {.required = true, .positional = true});
    s.choice("dtype", dtype, {"f32", "f64", "both"}, "Type to compute in");
    s.choice("path", path, {"sparse", "dense"}, "dense: the T x T reference");
    s.field("atol", atol, "Absolute tolerance; negative: 1e-12 in f64, 1e-6 in f32");
    s.field("rtol", rtol, "Tolerance relative to the largest value; negative: 1e-10, 1e-4",
            {.alias = "tolerance"});
  }

  int run(const RunContext& context) {
    int64_t ran = 0, passed = 0;
    int64_t skipped = 0;
    for (const std::string& file : golden) {
      for (Dtype type : {Dtype::f64, Dtype::f32}) {
        if (dtype != "both" && dtype != name_of(type)) continue;
        GoldenTolerance tolerance = GoldenTolerance::of(type);
        if (atol >= 0) tolerance.atol = atol;
        if (rtol >= 0) tolerance.rtol = rtol;
        GoldenReport report = run_golden(file, type, tolerance, path == "dense");
        if (!report.skipped.empty()) {
          std::cout << file << " " << type << ": skipped: " << report.skipped << "\n";
          ++skipped;
          continue;
        }
        std::cout << file << " " << type << ": " << (report.ok() ? "ok" : "OUT OF TOLERANCE")
                  << ", " << report.rows.size() << " datasets\n";
        for (const GoldenRow& row : report.rows) {
          if (context.quiet && row.ok()) continue;
          std::printf("  %-32s error %.2e  bound %.2e%s\n", row.dataset.c_str(), row.error,
                      row.bound, row.ok() ? "" : "  <-- out of tolerance");
        }
        ++ran;
        passed += report.ok();
      }
    }
    std::cout << passed << " of " << ran << " ok";
    if (skipped) std::cout << ", " << skipped << " skipped";
    std::cout << "\n";
    return passed == ran ? 0 : 1;
  }
};
const RegisterSubcommand<Verify> registration("verify", "Compare the SEA block with golden files");

}  // namespace
}  // namespace brine
