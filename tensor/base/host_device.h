// The marks of functions that run on the host and on a device.
#pragma once

#ifdef __CUDACC__
#define BRINE_HD __host__ __device__ inline
#else
#define BRINE_HD inline
#endif

// For formulas of one number: a loop that calls one is not vectorised, and in a large function GCC
// keeps the call of an `inline` one.
#define BRINE_FORMULA BRINE_HD __attribute__((always_inline))
