// Copies, streams and events; see cuda_runtime_api.h.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

namespace emulator {

std::atomic<uint64_t> work[kDevices] = {};

}  // namespace emulator

// A delayed copy.
struct Copy {
  void* to;
  const void* from;
  size_t bytes;
};

struct EmulatedStream {
  int device;
  bool of_kernels;
  std::deque<Copy> copies;
  uint64_t issued = 0, done = 0;  // copies
  uint64_t after = 0;             // the work that its next copy comes after
  std::atomic<int> foreign{0};    // operations of libraries
};

struct EmulatedEvent {
  EmulatedStream* stream = nullptr;
  uint64_t copies = 0, work = 0;  // that come before it
};

namespace {

std::mutex mutex;
bool made_one[emulator::kDevices] = {};
std::map<const char*, size_t> pinned;

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "emulator: %s\n", what);
  std::abort();
}

bool is_pinned(const void* memory, size_t bytes) {
  const char* at = static_cast<const char*>(memory);
  auto next = pinned.upper_bound(at);
  if (next == pinned.begin()) return false;
  const auto& [base, size] = *std::prev(next);
  return at + bytes <= base + size;
}

void copy_now(const Copy& c) {
  emulator::Reach reach;
  std::memcpy(c.to, c.from, c.bytes);
}

void catch_up(EmulatedStream& s, uint64_t copies) {
  for (; s.done < copies; ++s.done) {
    copy_now(s.copies.front());
    s.copies.pop_front();
  }
}

}  // namespace

int emulator::device_of_stream(cudaStream_t stream) { return stream ? stream->device : -1; }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  std::lock_guard lock(mutex);
  const int device = emulator::current_device();
  *stream = new EmulatedStream{device, !made_one[device], {}};
  made_one[device] = true;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (stream->foreign > 0) return cudaErrorNotReady;
  return cudaStreamSynchronize(stream);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  while (stream->foreign > 0) std::this_thread::yield();
  std::lock_guard lock(mutex);
  catch_up(*stream, stream->issued);
  return cudaSuccess;
}
void emulator::begin_foreign_work(cudaStream_t stream) { ++stream->foreign; }
void emulator::end_foreign_work(cudaStream_t stream) { --stream->foreign; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new EmulatedEvent;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  std::lock_guard lock(mutex);
  *event = {stream, stream->issued,
            stream->of_kernels ? emulator::work[stream->device].load() : stream->after};
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  std::lock_guard lock(mutex);
  if (event->stream) catch_up(*event->stream, event->copies);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  std::lock_guard lock(mutex);
  if (!event->stream) return cudaSuccess;
  catch_up(*event->stream, event->copies);
  stream->after = std::max(stream->after, event->work);
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** block, size_t bytes) {
  *block = std::malloc(bytes);
  if (!*block) return cudaErrorMemoryAllocation;
  std::lock_guard lock(mutex);
  pinned[static_cast<char*>(*block)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* block) {
  std::lock_guard lock(mutex);
  pinned.erase(static_cast<char*>(block));
  std::free(block);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (!stream) return cudaErrorInvalidValue;
  const int to_device = kind != cudaMemcpyDeviceToHost ? stream->device : -1;
  const int from_device = kind != cudaMemcpyHostToDevice ? stream->device : -1;
  if (emulator::device_of(to) != to_device || emulator::device_of(from) != from_device) {
    return cudaErrorInvalidValue;
  }
  if (stream->of_kernels) {
    // An operation that only reads does not affect the order of later copies.
    if (kind != cudaMemcpyDeviceToHost) ++emulator::work[stream->device];
    copy_now({to, from, bytes});
    return cudaSuccess;
  }
  std::lock_guard lock(mutex);
  if (stream->after < emulator::work[stream->device])
    die("a copy does not come after the work before it");
  if (!is_pinned(kind == cudaMemcpyHostToDevice ? from : to, bytes)) {
    die("a concurrent copy uses memory that is not pinned");
  }
  stream->copies.push_back({to, from, bytes});
  ++stream->issued;
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream) {
  if (!stream || emulator::device_of(to) != stream->device) return cudaErrorInvalidValue;
  ++emulator::work[stream->device];
  if (emulator::recording()) return cudaSuccess;
  emulator::Reach reach;
  std::memset(to, byte, bytes);
  return cudaSuccess;
}
