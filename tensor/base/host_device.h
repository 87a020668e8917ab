// The mark of functions that run on the host and on a device.
#pragma once

#ifdef __CUDACC__
#define BRINE_HD __host__ __device__ inline
#else
#define BRINE_HD inline
#endif
