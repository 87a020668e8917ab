// Every kernel of the device against the CPU's: the same inputs, both types, any available device.
//
// The program test_cuda_emulated runs these cases on the emulator, test_cuda on a GPU.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "tensor/cuda/core/scratch.h"
#include "tensor/device/accelerator.h"
#include "tensor/device/allocator.h"
#include "tensor/kernels/dense.h"
#include "tests/gradcheck.h"
#include "tests/ops/kernel_table.h"
#include "tests/skip.h"

namespace brine::test {

inline constexpr Device kCpu{}, kCuda{DeviceType::cuda, 0};

// False if there is no device; the case is then skipped.
inline bool has_device() {
  static const bool yes = cuda::device_count() > 0;
  if (!yes) skip(cuda::why_none());
  return yes;
}

// While an object lives, a block of the emulated device has no more shared memory than on the
// smallest that the type must work on: compute capability 7.5, for f64, which only tests use, 8.6.
// A GPU is not changed.
class SmallDevice {
 public:
  explicit SmallDevice(Dtype dtype) { setenv(kName, dtype == Dtype::f64 ? "99" : "64", 1); }
  ~SmallDevice() { unsetenv(kName); }
  SmallDevice(const SmallDevice&) = delete;

 private:
  static constexpr const char* kName = "BRINE_EMULATED_SHARED_KB";
};

// While an object lives, models are made on the device.
struct OnDefault {
  explicit OnDefault(Device device) { set_default_device(device); }
  ~OnDefault() { set_default_device(kCpu); }
  OnDefault(const OnDefault&) = delete;
};

// Limits the memory of states and lists while an object lives.
class ScratchLimit {
 public:
  explicit ScratchLimit(int64_t bytes) { cuda::scratch_limit() = bytes; }
  ~ScratchLimit() { cuda::scratch_limit() = before_; }
  ScratchLimit(const ScratchLimit&) = delete;

 private:
  int64_t before_ = cuda::scratch_limit();
};

// Calls f at the end of a scope, after a failed REQUIRE as well: what a test has switched is as it
// was for the others.
template <class F>
struct AtEnd {
  F f;
  ~AtEnd() { f(); }
};
template <class F>
AtEnd(F) -> AtEnd<F>;

// A fresh copy of a tensor of the CPU where a run happens. Undefined ones stay undefined.
struct On {
  Device device;
  Tensor operator()(const Tensor& x) const {
    if (!x.defined()) return x;
    return device.is_cuda() ? x.detach().to(device) : x.clone();
  }
};

// The type of rows that a kernel reads as `dtype`: 16 bits if it may and is asked to.
inline Dtype stored(Dtype dtype, bool half) {
  return half && dtype == Dtype::f32 ? Dtype::bf16 : dtype;
}

// What the emulator must do and a device may miss although no kernel is wrong: sums of cuBLASLt and
// cuDNN round differently, which orders almost equal values, and threads have another speed. On a
// device it is a warning, so that a failure means something.
inline void check_emulated(bool ok, const std::string& what) {
  if (cuda::emulated()) {
    CHECK_MESSAGE(ok, what);
  } else {
    WARN_MESSAGE(ok, what);
  }
}

// The first of the largest differences if numbers differ by more than `tolerance` of the largest
// one, or of different bits when it is 0; else empty.
inline std::string difference(const std::string& what, const Tensor& wanted, const Tensor& got,
                              double tolerance) {
  const std::vector<double> a = wanted.to_vector(), b = got.to_vector();
  double scale = 0, worst = 0;
  size_t at = 0;
  bool nan = false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isfinite(a[i])) scale = std::max(scale, std::fabs(a[i]));
  }
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    const double off = std::fabs(a[i] - b[i]);
    nan = nan || !std::isfinite(off);
    if (off > worst || !std::isfinite(off)) {
      worst = off;
      at = i;
    }
  }
  if (!nan && worst <= tolerance * scale) return "";
  return join(what, ": element ", at, " is ", b[at], ", on the cpu ", a[at], ", scale ", scale);
}

// Of equal shape and type, and close as above.
inline void check_close(const std::string& what, const Tensor& wanted, const Tensor& got,
                        double tolerance) {
  REQUIRE_MESSAGE(wanted.shape() == got.shape(), what);
  REQUIRE_MESSAGE(wanted.dtype() == got.dtype(), what);
  const std::string differing = difference(what, wanted, got, tolerance);
  CHECK_MESSAGE(differing.empty(), differing);
}

struct Tolerance {
  double f32 = 2e-5, f64 = 1e-12;
  double of(Dtype t) const { return t == Dtype::f64 ? f64 : f32; }
};

// f(on) computes outputs from inputs moved by on(x), once on the CPU and once on the device; the
// results, by name, must agree. Fresh memory is poisoned
// (gradcheck.h).
template <class F>
void compare(const std::string& what, double tolerance, F f) {
  if (!has_device()) return;
  const std::vector<Tensor> wanted = f(On{kCpu}), got = f(On{kCuda});
  if (allocator_stats(kCuda).reserved > (4 << 20)) trim(kCuda);  // the emulator guards all of it
  REQUIRE_MESSAGE(wanted.size() == got.size(), what);
  for (size_t i = 0; i < wanted.size(); ++i) {
    INFO(what << ", output " << i);
    REQUIRE(wanted[i].defined() == got[i].defined());
    if (!wanted[i].defined()) continue;
    CHECK(got[i].device() == kCuda);
    check_close(what + ", output " + std::to_string(i), wanted[i], got[i].to(kCpu), tolerance);
  }
}

enum class Emulated { small_device, large_device };

// compare() in f32 and f64: f(on, dtype). A small device does for kernels that do not choose by its
// memory.
template <class F>
void compare_both(const std::string& what, F f, Tolerance tolerance = {},
                  Emulated device = Emulated::small_device) {
  for (Dtype dtype : {Dtype::f64, Dtype::f32}) {
    std::optional<SmallDevice> small;
    if (device == Emulated::small_device) small.emplace(dtype);
    compare(what + " " + name_of(dtype), tolerance.of(dtype),
            [&](const On& on) { return f(on, dtype); });
  }
}

// The cases of tests/ops/kernel_table.h.
inline void compare_all(const std::vector<table::KernelCase>& cases) {
  for (const table::KernelCase& c : cases) {
    for (Dtype type : c.types) {
      const SmallDevice small(type);
      compare(join(c.name, " ", type), Tolerance{}.of(type), [&](const On& on) {
        std::vector<Tensor> x = to_dtype(c.inputs, type);
        for (Tensor& input : x) input = on(input);
        return c.run(x);
      });
    }
  }
}

}  // namespace brine::test
