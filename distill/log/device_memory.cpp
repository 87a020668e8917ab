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

std::optional<DevicePeak> device_peak() {
  const Device device = default_device();
  if (!device.is_cuda()) return std::nullopt;
  return DevicePeak{device, allocator_stats(device).peak_reserved};
}

void add_json(nlohmann::ordered_json& out, const std::optional<DevicePeak>& peak) {
  if (!peak) return;
  out["device"] = join(peak->device);
  out["peak_bytes"] = peak->bytes;
}

}  // namespace brine::distill
