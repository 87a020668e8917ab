// The commit of the program.
#pragma once

#include <string>

namespace brine {

// The commit that the program was built from, its first 12 digits; "-changed" after it when files
// had changes, "unknown" outside a repository.
std::string commit_name();

}  // namespace brine
