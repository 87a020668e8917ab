// The caching allocator of the CPU.
#include "tensor/allocator.h"

#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "tensor/error.h"

namespace brine {
namespace {

constexpr size_t kGuard = 64;
constexpr unsigned char kGuardByte = 0xa5;
constexpr size_t kHugePage = size_t(2) << 20;

// Waiting blocks of one size class.
struct Bin {
  std::vector<void*> blocks;
  uint64_t used = 0;  // when one was last asked for, in requests
};

struct Cache {
  std::mutex mutex;
  std::map<size_t, Bin> waiting;  // by size class
  uint64_t requests = 0;
  int64_t most_live = 0;  // since start
  AllocatorStats stats;
  size_t cap = 0;
  bool poison = false;
  bool guard = false;
  bool count_violations = false;
  int64_t violations = 0;
};

// Never destroyed: tensors with static lifetime may be released after main.
Cache& cache() {
  static Cache* c = new Cache;
  return *c;
}

void trim_locked(Cache& c) {
  for (auto& [size, bin] : c.waiting) {
    for (void* p : bin.blocks) std::free(p);
    c.stats.reserved -= int64_t(size * bin.blocks.size());
  }
  c.waiting.clear();
}

// Batches of ever new lengths leave blocks of ever new sizes behind. When the system is asked for
// more, those that waited longest go until half more than was ever alive at once remains.
void make_room(Cache& c, size_t size) {
  constexpr int64_t kFree = 64 << 20;
  const int64_t live = c.stats.live + int64_t(size);
  const int64_t most = std::max(c.most_live, live);
  while (c.stats.reserved + int64_t(size) > most + most / 2 + kFree) {
    auto oldest = c.waiting.end();
    for (auto it = c.waiting.begin(); it != c.waiting.end(); ++it) {
      if (it->second.blocks.empty()) continue;
      if (oldest == c.waiting.end() || it->second.used < oldest->second.used) oldest = it;
    }
    if (oldest == c.waiting.end()) return;
    std::free(oldest->second.blocks.back());
    oldest->second.blocks.pop_back();
    c.stats.reserved -= int64_t(oldest->first);
  }
}

void* ask_system(Cache& c, size_t size) {
  make_room(c, size);
  if (c.cap && size_t(c.stats.reserved) + size > c.cap) trim_locked(c);
  check(!c.cap || size_t(c.stats.reserved) + size <= c.cap, "allocate: ", size, " bytes over the ",
        "cap of ", c.cap, " bytes, ", c.stats.reserved,
        " are in use; lower the batch or the length");
  bool huge = size >= 2 * kHugePage;
  size_t alignment = huge ? kHugePage : 64;
  size_t rounded = (size + alignment - 1) / alignment * alignment;
  void* p = std::aligned_alloc(alignment, rounded);
  if (!p) {
    trim_locked(c);
    p = std::aligned_alloc(alignment, rounded);
  }
  check(p != nullptr, "allocate: the system refused ", size, " bytes, ", c.stats.live,
        " are in use; lower the batch or the length");
  if (huge) madvise(p, rounded, MADV_HUGEPAGE);  // fewer page faults; failure does no harm
  ++c.stats.system_calls;
  c.stats.reserved += int64_t(size);
  c.stats.peak_reserved = std::max(c.stats.peak_reserved, c.stats.reserved);
  return p;
}

bool guards_hold(const unsigned char* block, size_t bytes) {
  for (size_t i = 0; i < kGuard; ++i) {
    if (block[i] != kGuardByte || block[kGuard + bytes + i] != kGuardByte) return false;
  }
  return true;
}

}  // namespace

size_t size_class(size_t bytes) {
  size_t size = std::max<size_t>(bytes, 64);
  size_t step = std::max<size_t>(std::bit_floor(size) / 8, 64);
  return (size + step - 1) / step * step;
}

void* allocate(size_t bytes, Device device) {
  check(!device.is_cuda(), "allocate: this build has no CUDA allocator");
  Cache& c = cache();
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
  c.most_live = std::max(c.most_live, c.stats.live);
  c.stats.peak_live = std::max(c.stats.peak_live, c.stats.live);
  if (c.poison) std::memset(p, 0xff, size);
  if (!c.guard) return p;
  auto* base = static_cast<unsigned char*>(p);
  std::memset(base, kGuardByte, kGuard);
  std::memset(base + kGuard + bytes, kGuardByte, kGuard);
  return base + kGuard;
}

void release(void* block, size_t bytes, Device) noexcept {
  Cache& c = cache();
  std::lock_guard lock(c.mutex);
  auto* base = static_cast<unsigned char*>(block);
  size_t size = size_class(bytes + (c.guard ? 2 * kGuard : 0));
  if (c.guard) {
    base -= kGuard;
    if (!guards_hold(base, bytes)) {
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
    std::free(base);
    c.stats.reserved -= int64_t(size);
  }
}

AllocatorStats allocator_stats(Device) {
  Cache& c = cache();
  std::lock_guard lock(c.mutex);
  return c.stats;
}

void reset_peak(Device) {
  Cache& c = cache();
  std::lock_guard lock(c.mutex);
  c.stats.peak_live = c.stats.live;
  c.stats.peak_reserved = c.stats.reserved;
}

void trim(Device) {
  Cache& c = cache();
  std::lock_guard lock(c.mutex);
  c.most_live = c.stats.live;
  trim_locked(c);
}

void set_memory_cap(size_t bytes, Device) {
  Cache& c = cache();
  std::lock_guard lock(c.mutex);
  c.cap = bytes;
}

void set_poison(bool on) {
  Cache& c = cache();
  std::lock_guard lock(c.mutex);
  c.poison = on;
}

void set_guard_bands(bool on) {
  Cache& c = cache();
  std::lock_guard lock(c.mutex);
  check(c.stats.live == 0 || c.guard == on, "set_guard_bands: ", c.stats.live, " bytes are live");
  c.guard = on;
}

void set_guard_counting(bool on) {
  Cache& c = cache();
  std::lock_guard lock(c.mutex);
  c.count_violations = on;
}

int64_t guard_violations() {
  Cache& c = cache();
  std::lock_guard lock(c.mutex);
  return c.violations;
}

}  // namespace brine
