// Questions to the CPU.
#include "tensor/cpu/core/cpu_identity.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace brine {
namespace {

CpuIdentity ask_cpu() {
  CpuIdentity id;
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  id.avx512_bf16 =
      __builtin_cpu_supports("avx512bf16") != 0 && __builtin_cpu_supports("avx512bw") != 0;
  constexpr unsigned kAvxVnni = 1U << 4;  // eax
  id.avx_vnni = __builtin_cpu_supports("avx2") && __get_cpuid_count(7, 1, &a, &b, &c, &d) &&
                (a & kAvxVnni) != 0;
#endif
  return id;
}

}  // namespace

const CpuIdentity& this_cpu_identity() {
  static const CpuIdentity identity = ask_cpu();
  return identity;
}

}  // namespace brine
