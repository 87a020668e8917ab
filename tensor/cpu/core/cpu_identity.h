// The identification of the CPU, read once.
#pragma once

namespace brine {

struct CpuIdentity {
  bool avx512_bf16 = false;  // products of pairs of bf16
  bool amx_bf16 = false;     // the same by tiles
  bool avx_vnni = false;     // products of bytes in 256 bits
};

const CpuIdentity& this_cpu_identity();

// Whether amx_bf16 may be used: the system gives the registers of tiles to processes that request
// them.
bool has_tiles();

}  // namespace brine
