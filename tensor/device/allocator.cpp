// The caching allocator: one cache for each device, one for pinned memory.
#include "tensor/device/allocator.h"

#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "tensor/base/error.h"
#include "tensor/device/accelerator.h"
#include "tensor/device/copies.h"

namespace brine {
namespace {

constexpr size_t kGuard = 64;
constexpr unsigned char kGuardByte = 0xa5;
constexpr size_t kHugePage = size_t(2) << 20;

// Waiting blocks of one size class.
struct Bin {
  std::vector<void*> blocks;
  uint64_t used = 0;  // time of the last request for one, counted in requests
};

struct Cache {
  Device device;
  bool pinned = false;  // memory of the CPU that devices copy from and to
  std::mutex mutex;
  std::map<size_t, Bin> waiting;  // by size class
  uint64_t requests = 0;
  int64_t max_live = 0;  // since start
  AllocatorStats stats;
  size_t cap = 0;
  bool poison = false;
  bool guard = false;
  bool count_violations = false;
  int64_t violations = 0;
};

constexpr int kDevices = cuda::kMaxDevices;

// The CPU's, those of the devices, the pinned one. Never destroyed: tensors with static lifetime
// may be released after main.
Cache* caches() {
  static Cache* all = [] {
    Cache* made = new Cache[2 + kDevices];
    for (int i = 0; i < kDevices; ++i) made[1 + i].device = {DeviceType::cuda, uint8_t(i)};
    made[1 + kDevices].pinned = true;
    return made;
  }();
  return all;
}

Cache& cache(Device device = {}) {
  check(!device.is_meta(), "allocate: the meta device has no memory");
  check(!device.is_cuda() || device.index < kDevices, "allocate: ", device, " is beyond the ",
        kDevices, " devices of this build");
  return caches()[device.is_cuda() ? 1 + device.index : 0];
}

Cache& pinned_cache() { return caches()[1 + kDevices]; }

// The device whose copies need CPU memory of this thread; the CPU: none.
thread_local Device pins_for;

// Blocks of the pinned cache that are in use: a tensor's device is only "CPU".
struct PinnedBlocks {
  std::atomic<int64_t> count = 0;  // skips the search if there are none
  std::mutex mutex;
  std::unordered_set<void*> blocks;

  void add(void* block) {
    std::lock_guard lock(mutex);
    blocks.insert(block);
    ++count;
  }
  bool take(void* block) {
    if (count.load() == 0) return false;
    std::lock_guard lock(mutex);
    const bool found = blocks.erase(block) > 0;
    count -= found;
    return found;
  }
};

PinnedBlocks& pinned_blocks() {
  static PinnedBlocks* all = new PinnedBlocks;
  return *all;
}

template <class F>
void each_cache(F&& f) {
  for (int i = 0; i < 2 + kDevices; ++i) {
    Cache& c = caches()[i];
    std::lock_guard lock(c.mutex);
    f(c);
  }
}

// All kernels of a device run on one stream: a released block may be used by the next kernel at
// once, since that runs after its earlier users. Concurrent copies keep their blocks (transfer.h).
void give_back(const Cache& c, void* block) {
  if (c.device.is_cuda()) {
    cuda::system_release(block, c.device.index);
  } else if (c.pinned) {
    cuda::system_release_pinned(block);
  } else {
    std::free(block);
  }
}

void trim_locked(Cache& c) {
  for (auto& [size, bin] : c.waiting) {
    for (void* p : bin.blocks) give_back(c, p);
    c.stats.reserved -= int64_t(size * bin.blocks.size());
  }
  c.waiting.clear();
}

// Batches with many different lengths leave blocks of many different sizes. When memory is
// requested from the system, the blocks that waited longest are returned until the reservation is
// at most max_reserved() of the peak of live bytes.
void make_room(Cache& c, size_t size) {
  if (c.pinned) return;  // returning it may stall every device; it has few sizes
  const int64_t live = c.stats.live + int64_t(size);
  const int64_t limit = max_reserved(std::max(c.max_live, live), c.device);
  while (c.stats.reserved + int64_t(size) > limit) {
    auto oldest = c.waiting.end();
    for (auto it = c.waiting.begin(); it != c.waiting.end(); ++it) {
      if (it->second.blocks.empty()) continue;
      if (oldest == c.waiting.end() || it->second.used < oldest->second.used) oldest = it;
    }
    if (oldest == c.waiting.end()) return;
    give_back(c, oldest->second.blocks.back());
    oldest->second.blocks.pop_back();
    c.stats.reserved -= int64_t(oldest->first);
  }
}

void* system_block(Cache& c, size_t size) {
  if (c.device.is_cuda()) return cuda::system_allocate(size, c.device.index);
  if (c.pinned) return cuda::system_allocate_pinned(size, pins_for.index);
  bool huge = size >= 2 * kHugePage;
  size_t alignment = huge ? kHugePage : 64;
  size_t rounded = (size + alignment - 1) / alignment * alignment;
  void* p = std::aligned_alloc(alignment, rounded);
  if (p && huge) madvise(p, rounded, MADV_HUGEPAGE);  // fewer page faults; a failure has no effect
  return p;
}

// The free memory of a device that refused, for the message.
std::string room(const Cache& c) {
  if (c.pinned) return "the system, for pinned memory,";
  if (!c.device.is_cuda()) return "the system";
  const cuda::MemoryInfo memory = cuda::memory_info(c.device.index);
  return join(c.device, " with ", memory.free, " of ", memory.total, " bytes free");
}

void* ask_system(Cache& c, size_t size) {
  make_room(c, size);
  if (c.cap && size_t(c.stats.reserved) + size > c.cap) trim_locked(c);
  check_memory(!c.cap || size_t(c.stats.reserved) + size <= c.cap, "allocate: ", size,
               " bytes over the ", "cap of ", c.cap, " bytes, ", c.stats.reserved,
               " are in use; lower the batch or the length");
  void* p = system_block(c, size);
  if (!p) {
    trim_locked(c);
    p = system_block(c, size);
  }
  check_memory(p != nullptr, "allocate: ", p ? "" : room(c), " refused ", size, " bytes, ",
               c.stats.live, " are in use; lower the batch or the length");
  ++c.stats.system_calls;
  c.stats.reserved += int64_t(size);
  c.stats.peak_reserved = std::max(c.stats.peak_reserved, c.stats.reserved);
  return p;
}

void fill_block(const Cache& c, unsigned char* at, unsigned char byte, size_t bytes) {
  if (c.device.is_cuda()) {
    cuda::system_fill(at, byte, bytes, c.device.index);
  } else {
    std::memset(at, byte, bytes);
  }
}

bool guards_hold(const Cache& c, const unsigned char* block, size_t bytes) {
  unsigned char guards[2 * kGuard];
  auto read = [&](unsigned char* to, const unsigned char* from) {
    if (c.device.is_cuda()) {
      cuda::system_read(to, from, kGuard, c.device.index);
    } else {
      std::memcpy(to, from, kGuard);
    }
  };
  read(guards, block);
  read(guards + kGuard, block + kGuard + bytes);
  return std::all_of(guards, guards + 2 * kGuard, [](unsigned char b) { return b == kGuardByte; });
}

}  // namespace

int64_t max_reserved(int64_t live, Device device) {
  // Requests stall a device. On a CPU one takes less time than the work on so large a block.
  const int64_t waiting = device.is_cuda() ? live / 2 : std::min(live / 2, int64_t(512) << 20);
  return live + waiting + (64 << 20);
}

size_t size_class(size_t bytes) {
  size_t size = std::max<size_t>(bytes, 64);
  size_t step = std::max<size_t>(std::bit_floor(size) / 8, 64);
  return (size + step - 1) / step * step;
}

namespace {

void* allocate_from(Cache& c, size_t bytes) {
  std::lock_guard lock(c.mutex);
  size_t size = size_class(bytes + (c.guard ? 2 * kGuard : 0));
  Bin& bin = c.waiting[size];
  bin.used = ++c.requests;
  if (omp_in_parallel()) ++c.stats.parallel_requests;
  void* p = nullptr;
  if (!bin.blocks.empty()) {
    p = bin.blocks.back();
    bin.blocks.pop_back();
  } else {
    p = ask_system(c, size);
  }
  c.stats.live += int64_t(size);
  c.max_live = std::max(c.max_live, c.stats.live);
  c.stats.peak_live = std::max(c.stats.peak_live, c.stats.live);
  auto* base = static_cast<unsigned char*>(p);
  if (c.poison) fill_block(c, base, 0xff, size);
  if (!c.guard) return p;
  fill_block(c, base, kGuardByte, kGuard);
  fill_block(c, base + kGuard + bytes, kGuardByte, kGuard);
  return base + kGuard;
}

}  // namespace

void* allocate(size_t bytes, Device device) {
  if (device.is_cuda() || !pins_for.is_cuda()) return allocate_from(cache(device), bytes);
  void* block = allocate_from(pinned_cache(), bytes);
  pinned_blocks().add(block);
  return block;
}

void release(void* block, size_t bytes, Device device) noexcept {
  const bool pinned = !device.is_cuda() && pinned_blocks().take(block);
  Cache& c = pinned ? pinned_cache() : cache(device);
  std::lock_guard lock(c.mutex);
  auto* base = static_cast<unsigned char*>(block);
  size_t size = size_class(bytes + (c.guard ? 2 * kGuard : 0));
  if (c.guard) {
    base -= kGuard;
    if (!guards_hold(c, base, bytes)) {
      if (!c.count_violations) {
        std::fprintf(stderr, "brine: a kernel wrote outside a block of %zu bytes\n", bytes);
        std::abort();
      }
      ++c.violations;
    }
  }
  c.stats.live -= int64_t(size);
  try {
    c.waiting[size].blocks.push_back(base);
  } catch (...) {
    give_back(c, base);
    c.stats.reserved -= int64_t(size);
  }
}

PinnedMemory::PinnedMemory(Device device) : before_(pins_for) { pins_for = device; }
PinnedMemory::~PinnedMemory() { pins_for = before_; }

AllocatorStats pinned_stats() {
  Cache& c = pinned_cache();
  std::lock_guard lock(c.mutex);
  return c.stats;
}

AllocatorStats allocator_stats(Device device) {
  Cache& c = cache(device);
  std::lock_guard lock(c.mutex);
  return c.stats;
}

void reset_peak(Device device) {
  Cache& c = cache(device);
  std::lock_guard lock(c.mutex);
  c.stats.peak_live = c.stats.live;
  c.stats.peak_reserved = c.stats.reserved;
}

void trim(Device device) {
  Cache& c = cache(device);
  std::lock_guard lock(c.mutex);
  c.max_live = c.stats.live;
  trim_locked(c);
}

void set_memory_cap(size_t bytes, Device device) {
  Cache& c = cache(device);
  std::lock_guard lock(c.mutex);
  c.cap = bytes;
}

void set_poison(bool on) {
  each_cache([&](Cache& c) { c.poison = on; });
}

void set_guard_bands(bool on) {
  each_cache([&](Cache& c) {
    check(c.stats.live == 0 || c.guard == on, "set_guard_bands: ", c.stats.live, " bytes are live");
    c.guard = on;
  });
}

void set_guard_counting(bool on) {
  each_cache([&](Cache& c) { c.count_violations = on; });
}

int64_t guard_violations() {
  int64_t all = 0;
  each_cache([&](Cache& c) { all += c.violations; });
  return all;
}

}  // namespace brine
