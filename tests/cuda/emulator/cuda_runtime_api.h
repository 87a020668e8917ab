// Streams beside that of the kernels, and events: what tensor/cuda/core/copies.cu orders copies
// with.
//
// The first stream that is made is the kernels': what is put there happens at once. Copies on any
// other are put off as long as the runtime allows, until an event or the stream is waited for: who
// reads their target, or reuses their source, too early gets the wrong numbers. The emulator ends
// the program where such a copy comes before work that it was not ordered after, or uses memory of
// the CPU that is not pinned.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>

struct EmulatedEvent;
using cudaEvent_t = EmulatedEvent*;
enum { cudaEventDisableTiming = 2 };

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaFreeHost(void* block);

namespace emulator {
// How many things were put on the kernels' stream.
extern std::atomic<uint64_t> work;
// Whether an address is one of the device's memory.
bool on_device(const void* p);
}  // namespace emulator
