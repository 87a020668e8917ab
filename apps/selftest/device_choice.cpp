// A GPU is used if the user says so, or if it has shown that it computes what the CPU does.
#include "apps/selftest/device_choice.h"

#include "apps/selftest/stamp.h"
#include "tensor/base/error.h"
#include "tensor/device/accelerator.h"

namespace brine::selftest {

DeviceChoice choose_device(const std::string& name, Device (*gpu)()) {
  if (name != "auto" && (name != "cuda" || !gpu)) return {parse_device(name)};
  if (name == "auto" && cuda::device_count() == 0) return {};
  const Device device = gpu ? gpu() : parse_device("cuda");
  if (name == "cuda") return {device};
  std::string why;
  try {
    why = Stamp::present(device.index).difference();
  } catch (const Error& e) {
    why = e.what();
  }
  if (why.empty()) return {device};
  return {Device{}, join("computing on the CPU: of ", device, " (", cuda::describe(device.index),
                         "), brine gpu-selftest decides whether --device auto uses it, and ", why,
                         "; run it once, or give --device cuda")};
}

}  // namespace brine::selftest
