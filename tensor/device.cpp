// Thread count and CPU features.
#include "tensor/device.h"

#include <omp.h>

#include <atomic>

namespace brine {
namespace {

std::atomic<bool> avx512_allowed{true};

}  // namespace

void set_threads(int threads) { omp_set_num_threads(threads > 0 ? threads : omp_get_num_procs()); }
int threads() { return omp_get_max_threads(); }

bool has_avx512() {
  static const bool yes = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512cd") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return yes;
}

bool uses_avx512_kernels() {
#if BRINE_DISPATCH
  return avx512_allowed.load(std::memory_order_relaxed) && has_avx512();
#else
  return false;
#endif
}

bool allow_avx512_kernels(bool on) { return avx512_allowed.exchange(on); }

}  // namespace brine
