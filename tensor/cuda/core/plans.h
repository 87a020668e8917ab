// Helpers for calls to a library: plans cached by shape, and memory for the duration of a call.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace brine::cuda {

// The most recently used plans, by key.
template <class Key, class Plan>
class Plans {
 public:
  explicit Plans(size_t capacity) : capacity_(capacity) {}

  // The plan of a key, made by make() if it is new.
  template <class Make>
  Plan& get(const Key& key, Make&& make) {
    auto at = plans_.find(key);
    if (at == plans_.end()) {
      if (plans_.size() >= capacity_) drop_oldest();
      at = plans_.emplace(key, Entry{make(), 0}).first;
    }
    at->second.used = ++clock_;
    return at->second.plan;
  }

 private:
  struct Entry {
    Plan plan;
    uint64_t used;
  };

  void drop_oldest() {
    auto oldest = plans_.begin();
    for (auto it = plans_.begin(); it != plans_.end(); ++it) {
      if (it->second.used < oldest->second.used) oldest = it;
    }
    plans_.erase(oldest);
  }

  size_t capacity_;
  std::map<Key, Entry> plans_;
  uint64_t clock_ = 0;
};

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
  Plans<Key, Plan> plans;
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
