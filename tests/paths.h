// The locations of the source tree and the build. Defined in tests/main.cpp only, so that an object
// file of a test depends on neither.
#pragma once

#include <string>

namespace brine::test {

std::string source_dir();
std::string binary_dir();

}  // namespace brine::test
