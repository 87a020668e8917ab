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

FusedConv convolution(ConvPass pass, int64_t C, int64_t O, int64_t dilation, int64_t stride) {
  FusedConv c{.pass = pass, .B = 4, .W = 32, .C = C, .O = O, .kT = 3, .kW = 3};
  c.rows_in = 256;
  c.rows = (c.rows_in - 2 * dilation - 1) / stride + 1;
  c.dilation = c.margin = dilation;
  c.stride = stride;
  c.step = c.rows * c.W * O;
  return c;
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

TEST_CASE("cuDNN has plans for convolutions of the decoder, fused with bias and ReLU") {
  if (!target()) return;
  FusedConv c = convolution(ConvPass::forward, 48, 48, 2, 1);
  c.bias = c.relu = true;
  c.step += 4 * c.W * c.O;  // halos
  CHECK(refusal(c) == "");
  c.type = Dtype::f16;
  CHECK(refusal(c) == "");
  c = convolution(ConvPass::forward, 48, 12, 1, 1);  // the last layer: all heads' scores
  CHECK(refusal(c) == "");
  c = convolution(ConvPass::forward, 24, 24, 1, 2);
  c.bias = true;
  CHECK(refusal(c) == "");
}

TEST_CASE("cuDNN has plans for the gradients of convolutions, the sums in f32") {
  if (!target()) return;
  for (ConvPass pass : {ConvPass::data, ConvPass::weights}) {
    CHECK(refusal(convolution(pass, 48, 48, 2, 1)) == "");
    CHECK(refusal(convolution(pass, 48, 12, 1, 2)) == "");
  }
}

// 9.19 declines odd numbers of channels that a pass reads: the gradients of one head's last layer,
// 4 to 1, read dy. Brine's kernels compute them.
TEST_CASE("cuDNN has plans for the few channels of one and two heads") {
  if (!target()) return;
  for (int64_t channels : {2, 4}) {
    for (ConvPass pass : {ConvPass::forward, ConvPass::data, ConvPass::weights}) {
      INFO(channels << " channels, pass " << int(pass));
      FusedConv c = convolution(pass, channels, channels, 1, 1);
      c.bias = c.relu = pass == ConvPass::forward;
      CHECK(refusal(c) == "");
    }
  }
  FusedConv last = convolution(ConvPass::forward, 4, 1, 1, 1);
  last.bias = true;
  CHECK(refusal(last) == "");
  last.type = Dtype::f16;
  CHECK(refusal(last) == "");
}

TEST_CASE("cuDNN gives its reason for a refusal") {
  if (!target()) return;
  CHECK(refusal(FusedAttention{.B = 1, .H = 1, .T = 64, .d = 20}) != "");
  FusedConv c = convolution(ConvPass::forward, 48, 48, 1, 1);
  c.rows += 1;
  CHECK(refusal(c) != "");
}
