// Versions and names: tensor/device/gpu_software.h on the CUDA runtime. Those of libraries that are
// loaded are in tensor/cuda/loader/.
#include "tensor/device/gpu_software.h"

#include <fstream>

#include "tensor/cuda/core/common.cuh"

namespace brine::cuda {
namespace {

std::string dotted(int version) { return join(version / 1000, ".", version % 1000 / 10); }

__global__ void software_probe_kernel() {}

}  // namespace

std::string driver_version() {
  int cuda = 0;
  if (cudaDriverGetVersion(&cuda) != cudaSuccess || cuda == 0) {
    cudaGetLastError();
    return "";
  }
  std::string module;
  std::ifstream("/sys/module/nvidia/version") >> module;
  return join(module, module.empty() ? "" : ", ", "CUDA ", dotted(cuda));
}

std::string runtime_version() {
  int version = 0;
  check_cuda(cudaRuntimeGetVersion(&version), "cudaRuntimeGetVersion");
  return dotted(version);
}

std::string code_note(int index) {
  const DeviceGuard on(index);
  cudaDeviceProp p{};
  check_cuda(cudaGetDeviceProperties(&p, index), "cudaGetDeviceProperties");
  cudaFuncAttributes compiled{};
  const cudaError_t status = cudaFuncGetAttributes(&compiled, (const void*)software_probe_kernel);
  const std::string device = join("compute capability ", p.major, ".", p.minor);
  if (status != cudaSuccess) {
    cudaGetLastError();
    return join("this build has no code for ", device, " (", cudaGetErrorString(status),
                "); configure it with CMAKE_CUDA_ARCHITECTURES=native");
  }
  // Code of one generation runs on all of it; that of an older one was compiled again at this
  // start, without what is new.
  if (compiled.ptxVersion / 10 >= p.major) return "";
  return join(
      "this build's newest code for ", device, " is that of ", compiled.ptxVersion / 10, ".",
      compiled.ptxVersion % 10, ", compiled again by the driver",
      compiled.ptxVersion < 80 && p.major >= 8 ? ", without tensor cores of its own kernels" : "",
      "; for its full speed configure with CMAKE_CUDA_ARCHITECTURES=native");
}

}  // namespace brine::cuda
