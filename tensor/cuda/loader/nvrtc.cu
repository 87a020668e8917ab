// NVRTC, which only cuDNN calls, by itself: whether the program can find it, too.
#include <cuda_runtime_api.h>

#include "tensor/base/shared_library.h"
#include "tensor/device/gpu_software.h"

namespace brine::cuda {

std::string nvrtc_version() {
  const std::string name = join("libnvrtc.so.", CUDART_VERSION / 1000);
  const SharedLibrary library("cuda", name);
  if (!library.found()) return join("none: ", library.why());
  int major = 0, minor = 0;
  library.function<int(int*, int*)>("nvrtcVersion")(&major, &minor);
  return join(major, ".", minor);
}

}  // namespace brine::cuda
