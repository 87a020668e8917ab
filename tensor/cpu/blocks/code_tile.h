// Products of small unsigned numbers (0..15, 4-bit copies of keys) with signed bytes (8-bit
// queries), in exact 32-bit sums: every engine gives the same numbers.
#pragma once

#include <cstdint>

namespace brine::code_tile {

// avx512_vnni: 512 bits; avx_vnni, avx2: 256 bits; dot: ARM's product of bytes; plain: loops.
enum class Engine : uint8_t { plain, avx2, avx_vnni, avx512_vnni, dot };
inline constexpr Engine kEngines[] = {Engine::plain, Engine::avx2, Engine::avx_vnni,
                                      Engine::avx512_vnni, Engine::dot};

// The fastest that this CPU has.
Engine engine();
bool has(Engine engine);

// A score of each key and lane, and the largest of a lane.
struct Scores {
  const float* steps;    // [keys]
  const float* offsets;  // [lanes]
  float* largest;        // [lanes]
};

// out [keys, lanes] = codes [keys, depth] times u, whose channels 4 i .. 4 i + 3 of lane l are the
// bytes u[4 (i lanes + l)] .. + 3, from -127 to 127. depth is a multiple of 4, lanes of 16;
// depth <= 2^16.
void product(Engine engine, int64_t keys, int64_t lanes, int64_t depth, const uint8_t* codes,
             const int8_t* u, int32_t* out);
// The same as scores [keys, lanes] = (sum - offset of the lane) * step of the key.
void scores(Engine engine, int64_t keys, int64_t lanes, int64_t depth, const uint8_t* codes,
            const int8_t* u, const Scores& to, float* out);

}  // namespace brine::code_tile
