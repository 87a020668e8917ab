// NaN and infinity.
#pragma once

#include <limits>

namespace brine::test {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

}  // namespace brine::test
