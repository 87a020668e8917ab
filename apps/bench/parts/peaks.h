// The CPU's limits of arithmetic by type: multiply-adds in registers, without memory.
#pragma once

namespace brine::bench {

enum class Peak {
  f32,   // fused multiply-adds of the widest vectors of the build
  bf16,  // dot products of avx512_bf16
  amx,   // tiles of amx_bf16
};

const char* name_of(Peak peak);
// Whether the CPU has the instructions, and the operating system permits their registers.
bool has_peak(Peak peak);
// The fastest for products of bf16; f32 where the CPU has none of both.
Peak best_bf16_peak();

// Less than a millisecond of it on this thread. Returns the number of operations, two for a
// multiply-add.
double burst(Peak peak);
// GFLOP/s of the present number of threads together. A limit of the machine, so each thread counts
// with the best of its 20 bursts, which are shorter than the time slices of other processes.
double peak_rate(Peak peak);

}  // namespace brine::bench
