// Helpers for calls to a library: its plans and handles, and memory for the duration of a call.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "tensor/base/recently_used.h"
#include "tensor/tensor.h"

namespace brine::cuda {

// A library's handles, one per device, and its plans; to be used under the mutex.
template <class Handle, class Key, class Plan>
struct Library {
  explicit Library(size_t capacity) : plans(capacity) {}

  // The handle of a device, null before it is made.
  Handle& handle(int device) {
    if (int(handles.size()) <= device) handles.resize(size_t(device) + 1, nullptr);
    return handles[size_t(device)];
  }

  std::mutex mutex;
  std::vector<Handle> handles;  // by device
  RecentlyUsed<Key, Plan> plans;
};

// Memory aligned to 256 bytes. It is returned to the allocator as soon as the call is queued on the
// stream: later users of the memory run later.
class Workspace {
 public:
  Workspace(size_t bytes, Device device) {
    if (bytes == 0) return;
    constexpr uintptr_t kAlign = 256;
    block_ = Tensor::empty({int64_t(bytes + kAlign)}, Dtype::u8, device);
    const auto start = reinterpret_cast<uintptr_t>(block_.raw());
    data_ = block_.raw() + (kAlign - start % kAlign) % kAlign;
  }
  void* data() const { return data_; }

 private:
  Tensor block_;
  void* data_ = nullptr;
};

}  // namespace brine::cuda
