// A few slots of device memory with the bytes that were uploaded last (small_uploads.h).
#include "tensor/cuda/core/small_uploads.h"

#include <cstring>
#include <mutex>
#include <string_view>
#include <vector>

#include "tensor/cuda/core/common.cuh"

namespace brine::cuda {
namespace {

constexpr size_t kMaxSlots = 32;

// Memory of the system, not the allocator's: the slots stay until the program ends, and counts of
// live memory are of tensors. An upload to a slot that was used before runs after the kernels that
// read it, as all work of the device's stream.
struct Slot {
  std::shared_ptr<const void> memory;  // a copy of the pointer: a kernel is being launched with it
  std::vector<unsigned char> bytes;    // the uploaded contents
  uint64_t used = 0;
};

struct Slots {
  std::mutex mutex;
  std::vector<Slot> all;
  uint64_t clock = 0;
};

Slots& slots_of(int index) {
  static Slots* all = new Slots[kMaxDevices];
  return all[index];
}

// The slot of these bytes, if there is one; else one that may be overwritten, with none.
Slot& find(Slots& slots, std::string_view bytes, int index) {
  Slot* oldest = nullptr;
  for (Slot& p : slots.all) {
    if (p.bytes.size() == bytes.size() &&
        std::memcmp(p.bytes.data(), bytes.data(), bytes.size()) == 0) {
      return p;
    }
    if (p.memory.use_count() == 1 && (!oldest || p.used < oldest->used)) oldest = &p;
  }
  if (!oldest || slots.all.size() < kMaxSlots) {
    void* memory = system_allocate(size_t(kMaxSmallUpload), index);
    check_memory(memory != nullptr, "upload: ", kMaxSmallUpload, " bytes of cuda:", index,
                 " were refused; lower the batch or the length");
    oldest = &slots.all.emplace_back();
    oldest->memory = std::shared_ptr<const void>(memory, [](const void*) {});
  }
  oldest->bytes.clear();
  return *oldest;
}

}  // namespace

std::shared_ptr<const void> small_upload(const Tensor& x, Device device) {
  const size_t size = size_t(x.numel()) * item_size(x.dtype());
  if (!x.device().is_cpu() || size == 0 || size > size_t(kMaxSmallUpload)) return nullptr;
  const Tensor from = x.contiguous();
  const std::string_view bytes(reinterpret_cast<const char*>(from.raw()), size);
  Slots& slots = slots_of(device.index);
  std::lock_guard lock(slots.mutex);
  Slot& slot = find(slots, bytes, device.index);
  slot.used = ++slots.clock;
  if (slot.bytes.empty()) {
    upload(const_cast<void*>(slot.memory.get()), bytes.data(), size, device);
    slot.bytes.assign(bytes.begin(), bytes.end());
  }
  return slot.memory;
}

}  // namespace brine::cuda
