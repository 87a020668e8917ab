// A GPU is used if the user says so, or if it has shown that it computes what the CPU does.
#include "apps/selftest/device_choice.h"

#include "apps/selftest/stamp.h"
#include "tensor/device/accelerator.h"
#include "tensor/error.h"

namespace brine::selftest {

DeviceChoice choose_device(const std::string& name) {
  if (name != "auto") return {parse_device(name)};
  if (cuda::device_count() == 0) return {};
  std::string why;
  try {
    why = Stamp::present(0).difference();
  } catch (const Error& e) {
    why = e.what();
  }
  if (why.empty()) return {parse_device("cuda")};
  return {Device{}, join("computing on the CPU: of cuda:0 (", cuda::describe(0),
                         "), brine gpu-selftest decides whether --device auto uses it, and ", why,
                         "; run it once, or give --device cuda")};
}

}  // namespace brine::selftest
