// Compares the CPU features that this build uses with those of the CPU that runs it.
#pragma once

namespace brine {

struct CpuFeature {
  const char* name;
  bool needed;   // the compiler was allowed to use it
  bool present;  // the CPU has it and the operating system keeps its registers
};

// All features that are known, `count` of them. Stops the program with one line and status 1
// before anything else runs, when one is needed and not present.
const CpuFeature* cpu_features(int* count);

// Writes "avx2 fma": what is needed and not present; an empty text when all is well. Cuts at size.
void missing_features(const CpuFeature* features, int count, char* out, int size);

}  // namespace brine
