// Attention over blocks for programs in other languages: C names and plain memory.
#pragma once

#include <cstdint>

extern "C" {

// Version of the interface; changes with every incompatible change.
int brine_blocks_version();

// As BlockConfig; k is BlockConfig::chosen.
struct brine_blocks {
  int64_t chosen, block, tile, sinks, local, candidates, columns;
};

// Causal attention of whole sequences over the blocks that rows choose (docs/method.md section 8),
// off the tape, on the CPU. Everything is contiguous and in f32: q [B, H, T, d], k and v
// [B, G, T, d], key_scale [G, d] and the result y [B, H, T, d]; sizes are B, H, G, T, d. `choices`
// i32 [B, G, T, max(chosen, 1)] receives for each row those blocks that it is the first of its tile
// to choose, -1 after them; null: not wanted. `threads` compute; 0: one for each core. Several
// threads may call it at once. Returns null, or an error message that is valid until the thread's
// next call.
const char* brine_block_attention(const float* q, const float* k, const float* v,
                                  const float* key_scale, const int64_t* sizes,
                                  const brine_blocks* form, int threads, float* y,
                                  int32_t* choices);
}
