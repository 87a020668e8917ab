// Golden files compared in the wanted types, with a line for each dataset.
#include "apps/verify/verify.h"

#include <cstdio>

namespace brine {
namespace {

// Every line names the file and the type.
void print(const std::string& which, const GoldenReport& report, bool quiet, std::ostream& out) {
  if (!report.skipped.empty()) {
    out << which << "skipped: " << report.skipped << "\n";
    return;
  }
  out << which << (report.ok() ? "ok" : "OUT OF TOLERANCE") << ", " << report.rows.size()
      << " datasets\n";
  for (const GoldenRow& row : report.rows) {
    if (quiet && row.ok()) continue;
    char numbers[96];
    std::snprintf(numbers, sizeof numbers, "%-32s error %.2e  bound %.2e", row.dataset.c_str(),
                  row.error, row.bound);
    out << which << numbers << (row.ok() ? "" : "  <-- out of tolerance") << "\n";
  }
}

}  // namespace

void Verification::describe(data::Schema& s) {
  s.field("golden", golden, "Golden files", {.required = true, .positional = true});
  s.choice("dtype", dtype, kGoldenTypes, "Type to compute in");
  s.choice("path", path, distill::kAttentionPaths, "dense: the T x T reference");
  s.field("atol", atol, "Absolute tolerance; negative: 1e-12 in f64, 1e-6 in f32");
  s.field("rtol", rtol, "Tolerance relative to the largest value; negative: 1e-10, 1e-4",
          {.alias = "tolerance"});
}

std::vector<Dtype> Verification::types() const {
  if (dtype == GoldenTypes::both) return {Dtype::f64, Dtype::f32};
  return {dtype == GoldenTypes::f64 ? Dtype::f64 : Dtype::f32};
}

GoldenTolerance Verification::tolerance(Dtype type) const {
  GoldenTolerance t = GoldenTolerance::of(type);
  if (atol >= 0) t.atol = atol;
  if (rtol >= 0) t.rtol = rtol;
  return t;
}

VerifyCounts verify(const Verification& what, bool quiet, std::ostream& out) {
  VerifyCounts counts;
  for (const std::string& file : what.golden) {
    for (Dtype type : what.types()) {
      const GoldenReport report =
          run_golden(file, type, what.tolerance(type), what.path == distill::AttentionPath::dense);
      print(join(file, " ", type, ": "), report, quiet, out);
      counts.skipped += !report.skipped.empty();
      counts.compared += report.skipped.empty();
      counts.passed += report.skipped.empty() && report.ok();
    }
  }
  check(counts.compared > 0, "nothing was compared, all ", counts.skipped, " runs were skipped");
  out << counts.passed << " of " << counts.compared << " ok";
  if (counts.skipped) out << ", " << counts.skipped << " skipped";
  out << "\n";
  return counts;
}

}  // namespace brine
