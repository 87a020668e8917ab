// Named numbers of a step or an evaluation, in the order to show them.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace brine::distill {

using Values = std::vector<std::pair<std::string, double>>;

}  // namespace brine::distill
