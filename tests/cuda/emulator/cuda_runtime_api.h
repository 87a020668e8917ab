// Streams in addition to that of the kernels, and events: tensor/cuda/device/transfer.cu orders
// copies with them.
//
// A device's first stream is the kernels': work queued on it is executed at once. Copies on other
// streams are delayed as long as the runtime allows, until an event or the stream is waited for:
// code that reads their target, or reuses their source, too early gets wrong numbers. The emulator
// ends the program when such a copy precedes work that it was not ordered after, or uses CPU memory
// that is not pinned.
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
constexpr int kDevices = 4;  // the maximum; one, or BRINE_EMULATED_DEVICES
// The number of operations queued on the kernels' stream of each device.
extern std::atomic<uint64_t> work[kDevices];
// Whether an address is one of the device's memory.
bool on_device(const void* p);
// Work of a library on a stream begins and ends: until then the stream is not done.
void begin_foreign_work(cudaStream_t stream);
void end_foreign_work(cudaStream_t stream);
}  // namespace emulator
