// Runs the SEA block on golden files (schema: tests/golden/README.md) and compares every stage.
#pragma once

#include <string>
#include <vector>

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

}  // namespace brine
