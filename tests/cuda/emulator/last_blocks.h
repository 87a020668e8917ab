// While launches are recorded, the last block of each grid may run: its indices are the largest,
// and of the device's memory it reaches the operands of its launch alone. Memory that was never
// written is 0.
#pragma once

#include <set>
#include <string>

namespace emulator {

// `except` names the kernels whose last block takes minutes.
void run_last_blocks(const std::set<std::string>& except);
void run_no_blocks();

}  // namespace emulator
