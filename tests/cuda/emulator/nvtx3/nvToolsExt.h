// The part of NVTX that tensor/cuda/ uses. The emulator refuses a kernel that is launched outside a
// range, so every one has its name in a profile.
#pragma once

int nvtxRangePushA(const char* name);
int nvtxRangePop();
