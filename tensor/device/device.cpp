// Thread count and CPU features.
#include "tensor/device/device.h"

#include <omp.h>

#include <atomic>

#include "tensor/base/error.h"
#include "tensor/device/accelerator.h"

namespace brine {
namespace {

std::atomic<bool> avx512_allowed{true};
std::atomic<int> default_index{-1};  // of a CUDA device; -1 is the CPU

}  // namespace

Device default_device() {
  const int index = default_index.load(std::memory_order_relaxed);
  return index < 0 ? Device{} : Device{DeviceType::cuda, uint8_t(index)};
}

void set_default_device(Device device) {
  check(!device.is_meta(), "device: the meta device cannot be the default, it has no values");
  if (device.is_cuda()) cuda::use_device(device.index);
  default_index = device.is_cuda() ? device.index : -1;
}

Device parse_device(const std::string& name) {
  if (name == "cpu") return {};
  const bool cuda = name == "cuda" || name.rfind("cuda:", 0) == 0;
  const std::string digits = name.size() > 5 ? name.substr(5) : "0";
  check(cuda && name != "cuda:" && digits.size() <= 2 &&
            digits.find_first_not_of("0123456789") == std::string::npos,
        "device: '", name, "', wanted cpu, cuda or cuda:N");
  const int index = std::stoi(digits), count = cuda::device_count();
  check(count > 0, "device: ", name, " was requested: ", cuda::why_none());
  check(index < count, "device: ", name, " was requested, but there ",
        count == 1 ? "is 1 device" : join("are ", count, " devices"), ", counted from 0");
  return {DeviceType::cuda, uint8_t(index)};
}

void set_threads(int threads) { omp_set_num_threads(threads > 0 ? threads : omp_get_num_procs()); }
int threads() { return omp_get_max_threads(); }

bool has_avx512() {
#if defined(__x86_64__)
  static const bool yes = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512cd") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return yes;
#else
  return false;
#endif
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
