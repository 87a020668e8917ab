// Caching allocator: freed blocks wait in bins of one size class and are reused.
//
// Blocks are aligned to 64 bytes (from 4 MiB on to 2 MiB, in huge pages). Size classes keep three
// bits after the leading one, so at most 12.5 % of a block is unused.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/device/device.h"

namespace brine {

struct AllocatorStats {
  int64_t system_calls = 0;  // requests to the system
  int64_t live = 0;          // bytes in use now
  int64_t peak_live = 0;     // the most since start or reset_peak()
  int64_t reserved = 0;      // bytes held from the system: live and waiting blocks
  int64_t peak_reserved = 0;
  // Requests of pieces of a parallel loop: the number that live at once depends on scheduling.
  int64_t parallel_requests = 0;
};

// A block of at least `bytes` bytes. Throws an Error naming the sizes when the system or the cap
// refuses even after waiting blocks were returned.
void* allocate(size_t bytes, Device device);
// Releases a block; `bytes` is the argument of allocate(). With guard bands on, a write outside the
// block ends the program with a message (a destructor cannot throw).
void release(void* block, size_t bytes, Device device) noexcept;

AllocatorStats allocator_stats(Device device = default_device());
void reset_peak(Device device = default_device());
// Returns waiting blocks to the system. (The oldest ones are returned automatically when more
// memory is needed than max_reserved() of the peak of live bytes.)
void trim(Device device = default_device());
// The most bytes that are held for a peak of `live` bytes, where blocks have many sizes.
int64_t max_reserved(int64_t live, Device device = default_device());
// The most bytes to reserve; 0 = no cap.
void set_memory_cap(size_t bytes, Device device = default_device());

// Debugging aids. Poison fills every new block with 0xff: NaN in every floating type.
void set_poison(bool on);
// Guard bands put 64 known bytes before and after every block and check them on release.
// Call while no block is live (at start); throws otherwise.
void set_guard_bands(bool on);
// Guard violations are counted instead of ending the program while this is on (tests only).
void set_guard_counting(bool on);
int64_t guard_violations();

// The size class of a request.
size_t size_class(size_t bytes);

}  // namespace brine
