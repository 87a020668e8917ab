// Where memory lives, how many threads compute, and what the CPU can do.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>

namespace brine {

enum class DeviceType : uint8_t { cpu, cuda };

struct Device {
  DeviceType type = DeviceType::cpu;
  uint8_t index = 0;

  bool is_cuda() const { return type == DeviceType::cuda; }
  friend bool operator==(Device, Device) = default;
  friend std::ostream& operator<<(std::ostream& os, Device d) {
    if (!d.is_cuda()) return os << "cpu";
    return os << "cuda:" << int(d.index);
  }
};

// Where models and what they compute lie unless told otherwise; the CPU at first. Tensors that the
// CPU reads (ids, lengths, places) stay on the CPU all the same.
Device default_device();
void set_default_device(Device device);
// "cpu", "cuda", "cuda:1" -> the device. Throws when the name is another or it is not there.
Device parse_device(const std::string& name);

// Threads of every parallel kernel. set_threads(0) takes the number of cores.
void set_threads(int threads);
int threads();

// True when the CPU and the operating system run AVX-512 F, BW, CD, DQ and VL.
bool has_avx512();

// True when this build carries AVX-512 copies of the kernels and the CPU runs them.
bool uses_avx512_kernels();
// Tests only: false keeps to the portable kernels. Returns the setting before.
bool allow_avx512_kernels(bool on);

}  // namespace brine
