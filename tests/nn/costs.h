// Costs that are counted on the meta device next to those of a real pass.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <string>

#include "tensor/meter/cost_meter.h"

namespace brine::test {

using Costs = std::map<std::string, Cost>;

// Equal, but within `share` in the components of a sparse mask: a selection rounds the keys of a
// row to whole columns.
inline void check_alike(const Costs& meta, const Costs& real, double share = 0) {
  REQUIRE_FALSE(real.empty());
  for (const auto& [component, cost] : real) {
    CAPTURE(component);
    REQUIRE(meta.contains(component));
    const bool rounded = component == "mask" || component == "sparse attention";
    CHECK(std::fabs(meta.at(component).macs - cost.macs) <= (rounded ? share : 0) * cost.macs);
    CHECK(std::fabs(meta.at(component).bytes - cost.bytes) <= (rounded ? share : 0) * cost.bytes);
  }
  CHECK(meta.size() == real.size());
}

}  // namespace brine::test
