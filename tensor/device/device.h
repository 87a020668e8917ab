// Devices, the number of threads, and the features of the CPU.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>

namespace brine {

enum class DeviceType : uint8_t { cpu, cuda, meta };

struct Device {
  DeviceType type = DeviceType::cpu;
  uint8_t index = 0;

  // Tensors of this device have shapes and types but no memory, and kernels do nothing on them. Ops
  // still check their inputs and report to a CostMeter, so the cost of any model or method at any
  // length can be computed without running it. Reading values is an error.
  static const Device meta;

  bool is_cpu() const { return type == DeviceType::cpu; }
  bool is_cuda() const { return type == DeviceType::cuda; }
  bool is_meta() const { return type == DeviceType::meta; }
  friend bool operator==(Device, Device) = default;
  friend std::ostream& operator<<(std::ostream& os, Device d) {
    if (!d.is_cuda()) return os << (d.is_meta() ? "meta" : "cpu");
    return os << "cuda:" << int(d.index);
  }
};
inline constexpr Device Device::meta{DeviceType::meta};

// The device of models and their results unless specified otherwise; initially the CPU. Tensors
// that the CPU reads (ids, lengths, positions) always stay on the CPU.
Device default_device();
// Throws for the meta device: its results have no values.
void set_default_device(Device device);
// "cpu", "cuda", "cuda:1" -> the device. Throws for another name or an absent device.
Device parse_device(const std::string& name);

// Threads of every parallel kernel. set_threads(0) takes the number of cores.
void set_threads(int threads);
int threads();

// True when the CPU and the operating system run AVX-512 F, BW, CD, DQ and VL.
bool has_avx512();

// True when this build has AVX-512 copies of the kernels and the CPU runs them.
bool uses_avx512_kernels();
// Tests only: false selects the portable kernels. Returns the earlier setting.
bool allow_avx512_kernels(bool on);

}  // namespace brine
