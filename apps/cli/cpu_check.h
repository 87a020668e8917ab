// Compares the CPU features that this build uses with those of the current CPU.
#pragma once

namespace brine {

struct CpuFeature {
  const char* name;
  bool needed;   // the compiler was allowed to use it
  bool present;  // the CPU has it and the operating system saves its registers
};

// All known features, `count` of them. Stops the program with one line and status 1 before anything
// else runs, when a needed one is not present.
const CpuFeature* cpu_features(int* count);

// Writes "avx2 fma": the needed features that are not present; an empty text if there are none.
// Truncates at size.
void missing_features(const CpuFeature* features, int count, char* out, int size);

}  // namespace brine
