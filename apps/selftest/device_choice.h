// The device of --device.
#pragma once

#include <string>

#include "tensor/device/device.h"

namespace brine::selftest {

struct DeviceChoice {
  Device device;
  // With "auto" on the CPU of a machine with a GPU: why, and how to allow the GPU. One line.
  std::string note = {};
};

// "cpu" and "cuda:N" as parse_device(). "cuda": what `gpu` returns, the first GPU without it.
// "auto": that GPU where `brine gpu-selftest` of this build has passed with this driver, otherwise
// the CPU.
DeviceChoice choose_device(const std::string& name, Device (*gpu)() = nullptr);

}  // namespace brine::selftest
