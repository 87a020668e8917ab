// The output of `brine --version`.
#pragma once

#include <string>

namespace brine {

// Version, compiler, libraries and CPU features, one per line.
std::string version_text();

// The commit that the program was built from, its first 12 digits; "-changed" behind it when files
// had changes, "unknown" outside a repository.
std::string commit_name();

}  // namespace brine
