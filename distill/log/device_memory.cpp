// The peak memory of a run on its device.
#include "distill/log/device_memory.h"

#include <nlohmann/json.hpp>

#include "data/io/human.h"
#include "tensor/base/error.h"
#include "tensor/device/allocator.h"

namespace brine::distill {

std::string peak_memory() {
  const Device device = default_device();
  return join("peak ", human_bytes(double(allocator_stats(device).peak_reserved)),
              device.is_cuda() ? join(" on ", device) : "");
}

void add_peak_memory(nlohmann::ordered_json& out) {
  const Device device = default_device();
  if (!device.is_cuda()) return;
  out["device"] = join(device);
  out["peak_bytes"] = allocator_stats(device).peak_reserved;
}

}  // namespace brine::distill
