// Golden files compared in the wanted types, with a line for each dataset.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "apps/verify/golden.h"
#include "data/config/schema.h"
#include "distill/evaluation/evaluate_text.h"

namespace brine {

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
