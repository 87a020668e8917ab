// The output of `brine --version`.
#pragma once

#include <string>

namespace brine {

// Version, compiler, libraries and CPU features, one per line.
std::string version_text();

}  // namespace brine
