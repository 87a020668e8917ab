// Version, compiler, libraries and CPU features, for bug reports.
#include <oneapi/dnnl/dnnl_version.h>

// Debian has a separate folder for it.
#if __has_include(<H5public.h>)
#include <H5public.h>
#else
#include <hdf5/serial/H5public.h>
#endif

#include "apps/cli/cpu_check.h"
#include "apps/cli/program.h"
#include "apps/terminal/terminal.h"
#include "tensor/base/error.h"
#include "tensor/device/accelerator.h"
#include "tensor/device/device.h"
#include "tensor/device/gpu_software.h"

namespace brine {

namespace {

std::string cpu_line(bool needed) {
  int count = 0;
  const CpuFeature* features = cpu_features(&count);
  std::string out;
  for (int i = 0; i < count; ++i) {
    bool listed = needed ? features[i].needed : features[i].present;
    if (listed) out += std::string(out.empty() ? "" : " ") + features[i].name;
  }
  return out.empty() ? "none" : out;
}

std::string gpu_line() {
  const int count = cuda::device_count();
  std::string out = count ? "" : cuda::why_none();
  for (int i = 0; i < count; ++i) out += join(i ? "; " : "", "cuda:", i, " ", cuda::describe(i));
  return out;
}

// A library that is loaded when it is needed, or the Python package that has it.
std::string library(const char* name, const std::string& version, const std::string& package) {
  if (!version.starts_with("none")) return join(", ", name, " ", version);
  return join(", no ", name, " (Python package ", package, ")");
}

// Driver, runtime and libraries of a GPU.
std::string cuda_line() {
  const std::string runtime = cuda::runtime_version(), driver = cuda::driver_version();
  if (runtime.empty()) return "none: " + cuda::why_none();
  // Packages for CUDA 13 have names without a suffix, except cuDNN's.
  const std::string major = runtime.substr(0, runtime.find('.'));
  const std::string suffix = major == "12" ? "-cu12" : "";
  return join(driver.empty() ? "no driver" : "driver " + driver, ", runtime ", runtime,
              library("cuBLASLt", cuda::cublaslt_version(), "nvidia-cublas" + suffix),
              library("cuDNN", cuda::cudnn_version(), "nvidia-cudnn-cu" + major),
              library("NVRTC", cuda::nvrtc_version(), "nvidia-cuda-nvrtc" + suffix));
}

std::string dotted(int major, int minor, int patch) { return join(major, ".", minor, ".", patch); }

}  // namespace

std::string version_text() {
  std::string compiler = __VERSION__;
#if defined(__GNUC__) && !defined(__clang__)
  compiler = "GCC " + compiler;
#endif
  std::string kernels =
      uses_avx512_kernels() ? "AVX-512 copies, chosen for this CPU" : "of the build";
  return join(
      "brine ", BRINE_VERSION, "\ncommit        ", commit_name(), "\ncompiler      ", compiler,
      "\noneDNN        ", dotted(DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR, DNNL_VERSION_PATCH),
      "\nHDF5          ", dotted(H5_VERS_MAJOR, H5_VERS_MINOR, H5_VERS_RELEASE), "\nOpenMP        ",
      _OPENMP, "\nthreads       ", threads(), "\nCPU has       ", cpu_line(false),
      "\nbuild needs   ", cpu_line(true), "\nkernels       ", kernels, "\nGPU           ",
      gpu_line(), "\nCUDA          ", cuda_line(), "\ncuDNN         ", cuda::cudnn_version(), "\n");
}

}  // namespace brine
