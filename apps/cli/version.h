// What `brine --version` prints.
#pragma once

#include <string>

namespace brine {

// Version, compiler, libraries and CPU features, a line each.
std::string version_text();

}  // namespace brine
