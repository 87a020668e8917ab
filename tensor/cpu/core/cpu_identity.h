// The identification of the CPU, read once.
#pragma once

namespace brine {

struct CpuIdentity {
  bool avx512_bf16 = false;  // products of pairs of bf16
  bool avx_vnni = false;     // products of bytes in 256 bits
};

const CpuIdentity& this_cpu_identity();

}  // namespace brine
