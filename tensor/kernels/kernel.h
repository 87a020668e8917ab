// How a kernel is declared and called. One declaration serves every backend.
//
// BRINE_KERNEL(name, arguments...) declares one signature in cpu::, in cpu_avx512:: (the same
// source compiled once more, in builds with run-time dispatch) and in cuda::.
// BRINE_CALL(x, name, arguments...) calls the one for the device of x, which is this thread's
// current one during the call; on the meta device it does nothing and does not evaluate the
// arguments.
// A CPU source opens `namespace brine::BRINE_CPU {`.
//
// Order of arguments: outputs, inputs, saved values, scalars. dx is the gradient of x.
// Contract: tensors are contiguous unless the comment says "strided"; outputs are fully written
// unless it says "adds"; shapes were checked by the caller; same bits for any number of threads.
#pragma once

#include "tensor/device/accelerator.h"
#include "tensor/tensor.h"

#ifndef BRINE_CPU
#define BRINE_CPU cpu
#endif

#if defined(BRINE_KERNEL)  // tensor/cuda/absent/no_cuda.cpp defines its own
#elif BRINE_DISPATCH
#define BRINE_KERNEL(name, ...) \
  namespace cpu {               \
  void name(__VA_ARGS__);       \
  }                             \
  namespace cpu_avx512 {        \
  void name(__VA_ARGS__);       \
  }                             \
  namespace cuda {              \
  void name(__VA_ARGS__);       \
  }
#else
#define BRINE_KERNEL(name, ...) \
  namespace cpu {               \
  void name(__VA_ARGS__);       \
  }                             \
  namespace cuda {              \
  void name(__VA_ARGS__);       \
  }
#endif

#if BRINE_DISPATCH
#define BRINE_CALL_CPU(name, ...) \
  (uses_avx512_kernels() ? cpu_avx512::name(__VA_ARGS__) : cpu::name(__VA_ARGS__))
#else
#define BRINE_CALL_CPU(name, ...) cpu::name(__VA_ARGS__)
#endif

#define BRINE_CALL(x, name, ...)                                                         \
  ((x).device().is_cpu() ? BRINE_CALL_CPU(name, __VA_ARGS__)                             \
   : (x).device().is_cuda()                                                              \
       ? (void(::brine::cuda::DeviceGuard((x).device().index)), cuda::name(__VA_ARGS__)) \
       : void())
