// Questions to the CPU and to the system about its registers.
#include "tensor/cpu/core/cpu_identity.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace brine {
namespace {

CpuIdentity ask_cpu() {
  CpuIdentity id;
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  id.avx512_bf16 =
      __builtin_cpu_supports("avx512bf16") != 0 && __builtin_cpu_supports("avx512bw") != 0;
  constexpr unsigned kAmxBf16 = 1U << 22, kAmxTile = 1U << 24;  // edx
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) id.amx_bf16 = (d & kAmxBf16) && (d & kAmxTile);
  constexpr unsigned kAvxVnni = 1U << 4;  // eax
  id.avx_vnni = __builtin_cpu_supports("avx2") && __get_cpuid_count(7, 1, &a, &b, &c, &d) &&
                (a & kAvxVnni) != 0;
#endif
  return id;
}

bool ask_for_tiles() {
#if defined(__x86_64__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XTILEDATA
  return this_cpu_identity().amx_bf16 &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

}  // namespace

const CpuIdentity& this_cpu_identity() {
  static const CpuIdentity identity = ask_cpu();
  return identity;
}

bool has_tiles() {
  static const bool has = ask_for_tiles();
  return has;
}

}  // namespace brine
