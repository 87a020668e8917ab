// Skipping cases on machines that lack what they need: a message, a count, and the status "skipped"
// for ctest.
#pragma once

#include <string>

namespace brine::test {

// Counts the running case as skipped for `reason`; the case then returns. A test program whose
// cases were all skipped exits with 77, which ctest reports as "Skipped". Such cases have "(needs
// X)" in their names and are separate ctest entries (cmake/Tests.cmake).
void skip(const std::string& reason);

}  // namespace brine::test
