// Whether cuDNN accepts Brine's graphs. It makes plans for a described device, including compiled
// kernels, so that a machine without a GPU detects a graph that it would refuse on one.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cstdio>
#include <optional>

#include "tensor/cuda/cudnn/graphs.h"
#include "tensor/cuda/cudnn/library.h"
#include "tests/paths.h"
#include "tests/skip.h"

using namespace brine;
using namespace brine::cuda;

namespace {

// An H200 in cuDNN's words; of the driver and the clocks nothing here depends.
constexpr const char* kDevice = R"({"version": 1, "deviceName": "NVIDIA H200", "cudaDeviceId": 0,
"deviceVer": 900, "driverVer": 13000, "maxGridSize": [2147483647, 65535, 65535],
"maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536, "multiProcessorCount": 132,
"warpSize": 32, "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 232448,
"reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536, "maxCtasPerSM": 32,
"maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "pciDeviceId": 0, "isTccDriver": 0,
"supportCoopLaunch": 1, "totalGlobalMem": 150754820096, "smClockRateKHz": 1980000,
"memClockRateKHz": 3201000, "l2CacheSize": 62914560})";

// Null, with a message, if there is no cuDNN.
const cudnn::Target* target() {
  static const auto made = []() -> std::optional<cudnn::Descriptor> {
    // Before cuDNN asks for one.
    if (!dlopen((brine::test::binary_dir() + "/libno_driver.so").c_str(), RTLD_NOW | RTLD_GLOBAL)) {
      throw Error(dlerror());
    }
    if (cudnn::library().why_not.empty()) return cudnn::described_device(kDevice);
    return {};
  }();
  static const cudnn::Target described{.described = made ? &*made : nullptr};
  return made ? &described : nullptr;
}

// cuDNN's reason against a graph; empty when it has a plan.
template <class Work>
std::string refusal(const Work& work) {
  try {
    cudnn::plan_of(work, *target());
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

}  // namespace

TEST_CASE("cuDNN has plans for attention, with every mask") {
  if (!target()) return;
  FusedAttention a{.B = 4, .H = 12, .T = 1000, .d = 64};
  for (bool causal : {false, true}) {
    for (bool padded : {false, true}) {
      a.causal = causal;
      a.padded = padded;
      CHECK_MESSAGE(refusal(a) == "", "causal " << causal << ", padded " << padded);
    }
  }
  a.d = 128;
  CHECK(refusal(a) == "");
  a.d = 32;
  a.type = Dtype::f16;
  CHECK(refusal(a) == "");
}

TEST_CASE("cuDNN gives its reason for a refusal") {
  if (!target()) return;
  CHECK(refusal(FusedAttention{.B = 1, .H = 1, .T = 64, .d = 20}) != "");
}
