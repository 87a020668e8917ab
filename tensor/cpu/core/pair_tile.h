// Products of tiles in the caches whose factors are pairs of bf16, with sums in f32, by the
// instructions for pairs of bf16 (avx512_bf16).
//
// A pair is two numbers that are neighbours along the depth, the first in the lower half of 32
// bits. The order in which an element is summed depends on its number of pairs alone, not on its
// position.
#pragma once

#include <cstdint>

namespace brine::pair_tile {

// Whether this CPU has the instructions.
bool is_available();

// Pair p of row r is data[r step + p].
struct Rows {
  const uint32_t* data;
  int64_t step;
};
// Pair p of lane l is data[p step + l].
struct Lanes {
  const uint32_t* data;
  int64_t step;
};
// Element (r, l) is data[r step + l].
struct Sums {
  float* data;
  int64_t step;
};
struct Start {
  bool add = false;                // to the sums as they are
  const float* factors = nullptr;  // [lanes]: to the sums times these
};

// c [rows, lanes] = start + b [rows, pairs] a [pairs, lanes]; lanes is a multiple of 16.
void product(int64_t rows, int64_t lanes, int64_t pairs, Rows b, Lanes a, Sums c, Start start = {});

}  // namespace brine::pair_tile
