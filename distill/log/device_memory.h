// The peak memory of a run on its device.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "tensor/device/device.h"

namespace brine::distill {

// The peak since the start, or since reset_peak(): "peak 1.2 GiB", on a GPU "peak 1.2 GiB on
// cuda:0".
std::string peak_memory();
// The same of a GPU, for results; none on a CPU.
struct DevicePeak {
  Device device;
  int64_t bytes = 0;
};
std::optional<DevicePeak> device_peak();
// Adds "device" and "peak_bytes" if there is one.
void add_json(nlohmann::ordered_json& out, const std::optional<DevicePeak>& peak);

}  // namespace brine::distill
