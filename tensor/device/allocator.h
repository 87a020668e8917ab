// Caching allocator: freed blocks wait in bins of one size class and are handed out again.
//
// Blocks are aligned to 64 bytes (2 MiB and on huge pages from 4 MiB on). Size classes keep three
// bits behind the leading one, so that at most 12.5 % of a block is waste.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/device/device.h"

namespace brine {

struct AllocatorStats {
  int64_t system_calls = 0;  // times the system was asked for memory
  int64_t live = 0;          // bytes handed out now
  int64_t peak_live = 0;     // the most since start or reset_peak()
  int64_t reserved = 0;      // bytes held from the system: live blocks and waiting ones
  int64_t peak_reserved = 0;
  // Requests of pieces of a parallel loop: how many of these live at once is a matter of luck.
  int64_t parallel_requests = 0;
};

// A block of at least `bytes` bytes. Throws Error naming the sizes when the system or the cap
// refuses even after waiting blocks were given back.
void* allocate(size_t bytes, Device device);
// Returns a block; `bytes` is what allocate() was asked for. With guard bands on, a write outside
// the block ends the program with a message (a destructor cannot throw).
void release(void* block, size_t bytes, Device device) noexcept;

AllocatorStats allocator_stats(Device device = default_device());
void reset_peak(Device device = default_device());
// Gives waiting blocks back to the system. (Beyond one and a half times what was alive at once,
// those that waited longest go by themselves when more is needed.)
void trim(Device device = default_device());
// The most bytes to reserve; 0 = no cap.
void set_memory_cap(size_t bytes, Device device = default_device());

// Debug aids. Poison fills every block handed out with 0xff: NaN in every floating type.
void set_poison(bool on);
// Guard bands put 64 known bytes before and after every block and check them on release.
// Call while no block is live (at start); throws otherwise.
void set_guard_bands(bool on);
// Guard violations are counted instead of ending the program while this is on (tests only).
void set_guard_counting(bool on);
int64_t guard_violations();

// The size class that serves a request.
size_t size_class(size_t bytes);

}  // namespace brine
