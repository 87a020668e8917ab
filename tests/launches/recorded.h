// Launches that were recorded, and the emulated device that records them.
#pragma once

#include <doctest/doctest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "nn/optim/parameter_store.h"
#include "tensor/device/device.h"
#include "tests/cuda/emulator/launches.h"

namespace brine::test {

inline constexpr Device kCuda{DeviceType::cuda, 0};

// While an object lives, models and tensors are made on the device, whose kernels do not run.
class OnEmulator {
 public:
  OnEmulator() {
    emulator::record_launches();
    set_default_device(kCuda);
  }
  ~OnEmulator() { set_default_device(Device{}); }
  OnEmulator(const OnEmulator&) = delete;
};

// Shared memory of a block while an object lives, in KB.
class SharedMemory {
 public:
  explicit SharedMemory(const char* kilobytes) { setenv("BRINE_EMULATED_SHARED_KB", kilobytes, 1); }
  ~SharedMemory() { unsetenv("BRINE_EMULATED_SHARED_KB"); }
  SharedMemory(const SharedMemory&) = delete;
};

// Memory of the device whose numbers are not read.
inline Tensor unread(const Shape& shape, Dtype dtype = Dtype::f32) {
  return Tensor::empty(shape, dtype, kCuda);
}

struct Recorded {
  std::vector<emulator::Launch> inference, forward, backward;
  std::vector<const void*> shared;  // blocks of many tensors, of which a kernel reads one

  void parameters(nn::ParameterStore& store) {
    for (const Tensor& t : {store.values(), store.gradients()}) {
      shared.push_back(emulator::block_of(t.raw()).block);
    }
  }
};

}  // namespace brine::test
