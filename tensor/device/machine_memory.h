// The memory that the machine can still give to this process.
#pragma once

#include <string>

namespace brine {

// Bytes: MemAvailable of Linux, or less where a control group of the process limits it; infinite
// where neither is known. `root` is where /proc and /sys are, for tests.
double available_memory(const std::string& root = "");

}  // namespace brine
