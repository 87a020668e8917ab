// A libcuda.so.1 that reports success and does nothing: cuDNN compiles kernels without a device,
// but needs a driver to load them. Only the CUDA runtime is told that there is no device.
#define ANSWER(name, status) \
  extern "C" int name(...) { return status; }
#define GIVE(name) \
  extern "C" int name(void** made, ...) { return *made = &something, 0; }

namespace {
int something = 0;
}

GIVE(cuLibraryLoadData)
GIVE(cuLibraryGetKernel)
GIVE(cuModuleLoadData)
GIVE(cuModuleLoadDataEx)
GIVE(cuModuleGetFunction)
ANSWER(cuInit, 100)
ANSWER(cuDriverGetVersion, 100)
ANSWER(cuGetProcAddress_v2, 100)
ANSWER(cuCtxGetCurrent, 0)
ANSWER(cuCtxGetDevice, 0)
ANSWER(cuCtxGetLimit, 0)
ANSWER(cuCtxPopCurrent, 0)
ANSWER(cuCtxPushCurrent, 0)
ANSWER(cuDeviceGet, 0)
ANSWER(cuDeviceGetAttribute, 0)
ANSWER(cuDeviceGetCount, 0)
ANSWER(cuDevicePrimaryCtxRelease, 0)
ANSWER(cuDevicePrimaryCtxReset, 0)
ANSWER(cuDevicePrimaryCtxRetain, 0)
ANSWER(cuFuncGetAttribute, 0)
ANSWER(cuFuncSetAttribute, 0)
ANSWER(cuGetErrorName, 0)
ANSWER(cuGetErrorString, 0)
ANSWER(cuKernelGetAttribute, 0)
ANSWER(cuKernelSetAttribute, 0)
ANSWER(cuLaunchCooperativeKernel, 0)
ANSWER(cuLaunchKernel, 0)
ANSWER(cuLaunchKernelEx, 0)
ANSWER(cuLibraryLoadFromFile, 0)
ANSWER(cuLibraryUnload, 0)
ANSWER(cuLinkAddData, 0)
ANSWER(cuLinkAddData_v2, 0)
ANSWER(cuLinkAddFile_v2, 0)
ANSWER(cuLinkComplete, 0)
ANSWER(cuLinkCreate, 0)
ANSWER(cuLinkCreate_v2, 0)
ANSWER(cuLinkDestroy, 0)
ANSWER(cuMemcpyDtoH_v2, 0)
ANSWER(cuModuleGetGlobal_v2, 0)
ANSWER(cuModuleLoadFatBinary, 0)
ANSWER(cuModuleUnload, 0)
ANSWER(cuOccupancyMaxActiveBlocksPerMultiprocessor, 0)
ANSWER(cuOccupancyMaxPotentialClusterSize, 0)
ANSWER(cuStreamGetCtx, 0)
ANSWER(cuStreamSynchronize, 0)
ANSWER(cuTensorMapEncodeTiled, 0)
