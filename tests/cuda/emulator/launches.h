// A mode of the emulator for sizes that no test could compute: launches are checked as always and
// recorded, but no kernel, product or fill runs. Memory is addresses alone until something is
// copied to it, so a tensor may be larger than the machine; all that is copied from it is 0.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace emulator {

// A block of the device's memory whose address is among the arguments of a launch.
struct Operand {
  const void* block;
  size_t bytes;
};

struct Launch {
  std::string name;  // of the kernel; of a product "cublasLt"
  unsigned grid[3], block[3];
  size_t shared;  // bytes of dynamic shared memory
  std::vector<Operand> operands;

  // Threads of the whole grid.
  double threads() const {
    double n = 1;
    for (int i = 0; i < 3; ++i) n *= double(grid[i]) * double(block[i]);
    return n;
  }
};

// For the rest of the program; before the first tensor on the device.
void record_launches();
// Whether that was called.
bool recording();
// What was launched since the last call.
std::vector<Launch> take_launches();

// The block of the device's memory that contains an address; none: null.
Operand block_of(const void* address);

// Notes the addresses of the device among the bytes of an argument, for the next launch.
void note_operands(const void* argument, size_t bytes);
void record(Launch launch);

}  // namespace emulator
