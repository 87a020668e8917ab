// Golden files compared in the wanted types, with a line for each dataset.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "data/config/schema.h"
#include "distill/evaluation/evaluate_text.h"
#include "tensor/base/dtype.h"

namespace brine {

struct GoldenRow {
  std::string dataset;  // "intermediate/Z"
  double error = 0;     // worst |x - y|; of integers the number of different ones
  double bound = 0;     // atol + rtol max|y|; 0 for integers
  bool ok() const { return error <= bound; }
};

struct GoldenReport {
  std::string skipped;          // why this build cannot run the case; empty when it ran
  std::vector<GoldenRow> rows;  // in order: the first bad one names the faulty stage
  bool ok() const;              // some rows, and none out of bounds
};

struct GoldenTolerance {
  double atol = 0, rtol = 0;
  // f64: 1e-12 and 1e-10; f32: 1e-6 and 1e-4.
  static GoldenTolerance of(Dtype dtype);
};

// `dense` uses the T x T reference instead of the sparse path. Sequences are packed by the file's
// mask, as in a model. A file that needs a feature of the method which this program does not have
// is skipped, naming the feature. Throws for a malformed file.
GoldenReport run_golden(const std::string& file, Dtype dtype, const GoldenTolerance& tolerance,
                        bool dense = false);

enum class GoldenTypes { f32, f64, both };
inline constexpr data::Named<GoldenTypes> kGoldenTypes[] = {
    {GoldenTypes::f32, "f32"}, {GoldenTypes::f64, "f64"}, {GoldenTypes::both, "both"}};

struct Verification {
  std::vector<std::string> golden = {};  // files
  GoldenTypes dtype = GoldenTypes::both;
  distill::AttentionPath path = distill::AttentionPath::sparse;
  double atol = -1, rtol = -1;  // negative: GoldenTolerance::of()

  void describe(data::Schema& s);
  // Types to compute in, in this order.
  std::vector<Dtype> types() const;
  GoldenTolerance tolerance(Dtype type) const;
};

struct VerifyCounts {
  int64_t compared = 0, passed = 0, skipped = 0;  // runs, one for a file and a type
};

// `quiet`: only the datasets that are out of tolerance get a line. Throws when every run was
// skipped.
VerifyCounts verify(const Verification& what, bool quiet, std::ostream& out);

}  // namespace brine
