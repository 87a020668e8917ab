// Conversion of f16 as the emulator has it; see cuda_runtime.h.
#pragma once

#include <cstring>

struct __half {
  unsigned short bits;
};
inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
inline float __half2float(__half x) {
  _Float16 h;
  std::memcpy(&h, &x.bits, 2);
  return float(h);
}
