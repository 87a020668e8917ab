// Products of tiles of pairs of bf16: registers of 16 sums (avx512_bf16), tiles of 16 x 16 (amx).
#include "tensor/cpu/core/pair_tile.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "tensor/base/error.h"
#include "tensor/cpu/core/cpu_identity.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace brine::pair_tile {
namespace {

constexpr int64_t kLanes = 16;

// ---- tiles: rows of up to 16 words

// What a tile instruction multiplies: up to two blocks of 16 rows with two blocks of 16 lanes.
// Tiles 0..3 are the sums of block (i, j) at 2 i + j, 4 and 5 the rows, 6 and 7 the lanes.
struct TileShape {
  int rows[2];  // of the blocks of rows; 0: there is none
  int pairs;    // up to 16
};

// A tile at a time in plain code, in the order of the instruction (Intel's instruction set
// reference, TDPBF16PS): the first numbers of a row's pairs and the second ones are added
// separately, then both go to the sums.
class PlainTiles {
 public:
  explicit PlainTiles(const TileShape& shape) : shape_(shape) {}

  template <int tile>
  void zero() {
    std::fill_n(&sums_[tile][0][0], kLanes * kLanes, 0.0f);
  }
  // Sums, rows or lanes, by the number of the tile.
  template <int tile>
  void load(const void* from, int64_t step) {
    constexpr bool sums = tile < 4;
    const int rows = sums ? rows_of(tile) : tile < 6 ? shape_.rows[tile - 4] : shape_.pairs;
    const int64_t words = sums || tile >= 6 ? kLanes : shape_.pairs;
    for (int r = 0; r < rows; ++r) {
      void* to = sums ? static_cast<void*>(sums_[tile % 4][r]) : words_[tile % 4][r];
      std::memcpy(to, static_cast<const uint32_t*>(from) + r * step, size_t(words) * 4);
    }
  }
  template <int tile>
  void store_sums(float* to, int64_t step) const {
    for (int r = 0; r < rows_of(tile); ++r) std::copy_n(sums_[tile][r], kLanes, to + r * step);
  }
  template <int sum, int rows, int lanes>
  void multiply() {
    for (int r = 0; r < rows_of(sum); ++r) {
      for (int l = 0; l < kLanes; ++l) {
        float first = 0, second = 0;
        for (int p = 0; p < shape_.pairs; ++p) {
          const uint32_t y = words_[rows - 4][r][p], x = words_[lanes - 4][p][l];
          first += low(y) * low(x);
          second += high(y) * high(x);
        }
        sums_[sum][r][l] += first + second;
      }
    }
  }

 private:
  static float low(uint32_t pair) { return std::bit_cast<float>(pair << 16); }
  static float high(uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000u); }
  int rows_of(int sum) const { return shape_.rows[sum / 2]; }

  TileShape shape_;
  float sums_[4][kLanes][kLanes];
  uint32_t words_[4][kLanes][kLanes];
};

#if defined(__x86_64__)
#define BRINE_AMX [[gnu::target("amx-tile,amx-bf16")]]
// The intrinsics take the number of a tile as a literal.
#define BRINE_EACH_TILE(tile, call)   \
  if constexpr ((tile) == 0) call(0); \
  if constexpr ((tile) == 1) call(1); \
  if constexpr ((tile) == 2) call(2); \
  if constexpr ((tile) == 3) call(3); \
  if constexpr ((tile) == 4) call(4); \
  if constexpr ((tile) == 5) call(5); \
  if constexpr ((tile) == 6) call(6); \
  if constexpr ((tile) == 7) call(7)

// The instructions. Their tiles have the shape as long as an object lives.
class AmxTiles {
 public:
  BRINE_AMX explicit AmxTiles(const TileShape& shape) {
    struct alignas(64) {
      uint8_t palette = 1, start = 0, reserved[14] = {};
      uint16_t bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    auto set = [&](int tile, int rows, int words) {
      config.rows[tile] = uint8_t(rows);
      config.bytes[tile] = uint16_t(4 * words);
    };
    for (int i = 0; i < 2; ++i) {
      if (shape.rows[i] == 0) continue;
      set(2 * i, shape.rows[i], kLanes);
      set(2 * i + 1, shape.rows[i], kLanes);
      set(4 + i, shape.rows[i], shape.pairs);
    }
    set(6, shape.pairs, kLanes);
    set(7, shape.pairs, kLanes);
    // Not _tile_loadconfig(): GCC 12 declares that it reads 8 bytes, and drops the other stores.
    asm volatile("ldtilecfg %0" ::"m"(config));
  }
  BRINE_AMX ~AmxTiles() { _tile_release(); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

  template <int tile>
  BRINE_AMX void zero() {
#define BRINE_CALL_TILE(t) _tile_zero(t)
    BRINE_EACH_TILE(tile, BRINE_CALL_TILE);
#undef BRINE_CALL_TILE
  }
  template <int tile>
  BRINE_AMX void load(const void* from, int64_t step) {
    asm volatile("" ::: "memory");  // GCC's intrinsic does not say that it reads memory
#define BRINE_CALL_TILE(t) _tile_loadd(t, from, 4 * step)
    BRINE_EACH_TILE(tile, BRINE_CALL_TILE);
#undef BRINE_CALL_TILE
  }
  template <int tile>
  BRINE_AMX void store_sums(float* to, int64_t step) const {
#define BRINE_CALL_TILE(t) _tile_stored(t, to, 4 * step)
    BRINE_EACH_TILE(tile, BRINE_CALL_TILE);
#undef BRINE_CALL_TILE
  }
  template <int sum, int rows, int lanes>
  BRINE_AMX void multiply() {
    static_assert(rows == 4 + sum / 2 && lanes == 6 + sum % 2);
    if constexpr (sum == 0) _tile_dpbf16ps(0, 4, 6);
    if constexpr (sum == 1) _tile_dpbf16ps(1, 4, 7);
    if constexpr (sum == 2) _tile_dpbf16ps(2, 5, 6);
    if constexpr (sum == 3) _tile_dpbf16ps(3, 5, 7);
  }
};
#undef BRINE_EACH_TILE
#undef BRINE_AMX
#endif

struct Job {
  Rows b;
  Lanes a;
  Sums c;
  bool add;
};

// One or two blocks of rows times one or two of lanes: `steps` steps of the tiles' pairs.
template <bool two_rows, bool two_lanes, class Tiles>
void block(Tiles& tiles, const Job& at, int64_t steps, int64_t pairs) {
  const Job second{{at.b.data + kLanes * at.b.step, at.b.step},
                   {at.a.data + kLanes, at.a.step},
                   {at.c.data + kLanes * at.c.step, at.c.step},
                   at.add};
  if (at.add) {
    tiles.template load<0>(at.c.data, at.c.step);
    if (two_lanes) tiles.template load<1>(at.c.data + kLanes, at.c.step);
    if (two_rows) tiles.template load<2>(second.c.data, at.c.step);
    if (two_rows && two_lanes) tiles.template load<3>(second.c.data + kLanes, at.c.step);
  } else {
    tiles.template zero<0>();
    if (two_lanes) tiles.template zero<1>();
    if (two_rows) tiles.template zero<2>();
    if (two_rows && two_lanes) tiles.template zero<3>();
  }
  for (int64_t s = 0; s < steps; ++s) {
    const int64_t p = s * pairs;
    tiles.template load<4>(at.b.data + p, at.b.step);
    tiles.template load<6>(at.a.data + p * at.a.step, at.a.step);
    tiles.template multiply<0, 4, 6>();
    if (two_lanes) {
      tiles.template load<7>(second.a.data + p * at.a.step, at.a.step);
      tiles.template multiply<1, 4, 7>();
    }
    if (two_rows) {
      tiles.template load<5>(second.b.data + p, at.b.step);
      tiles.template multiply<2, 5, 6>();
      if (two_lanes) tiles.template multiply<3, 5, 7>();
    }
  }
  tiles.template store_sums<0>(at.c.data, at.c.step);
  if (two_lanes) tiles.template store_sums<1>(at.c.data + kLanes, at.c.step);
  if (two_rows) tiles.template store_sums<2>(second.c.data, at.c.step);
  if (two_rows && two_lanes) tiles.template store_sums<3>(second.c.data + kLanes, at.c.step);
}

// All lanes of rows that have one shape of tiles, `pairs` of `steps` each.
template <class Tiles>
void all_lanes(Tiles& tiles, const Job& at, int64_t rows, int64_t lanes, int64_t steps,
               int64_t pairs) {
  for (int64_t r = 0; r < rows; r += 2 * kLanes) {
    const bool two_rows = rows - r > kLanes;
    for (int64_t l = 0; l < lanes; l += 2 * kLanes) {
      const Job part{{at.b.data + r * at.b.step, at.b.step},
                     {at.a.data + l, at.a.step},
                     {at.c.data + r * at.c.step + l, at.c.step},
                     at.add};
      const bool two_lanes = lanes - l > kLanes;
      if (two_rows) {
        two_lanes ? block<true, true>(tiles, part, steps, pairs)
                  : block<true, false>(tiles, part, steps, pairs);
      } else {
        two_lanes ? block<false, true>(tiles, part, steps, pairs)
                  : block<false, false>(tiles, part, steps, pairs);
      }
    }
  }
}

// Whole pairs of blocks of rows, then the others, each with whole steps of pairs and the rest of
// them: a new shape of tiles clears the tiles.
template <class Tiles>
void by_tiles(const Job& whole, int64_t rows, int64_t lanes, int64_t pairs) {
  const int64_t even = rows / (2 * kLanes) * (2 * kLanes), steps = pairs / kLanes,
                rest = pairs % kLanes;
  for (bool last : {false, true}) {
    const int64_t first = last ? even : 0, count = last ? rows - even : even;
    if (count == 0) continue;
    const int upper = int(std::min(count, kLanes)),
              lower = int(std::min(count, 2 * kLanes) - upper);
    Job at{{whole.b.data + first * whole.b.step, whole.b.step},
           whole.a,
           {whole.c.data + first * whole.c.step, whole.c.step},
           whole.add};
    if (steps > 0 || rest == 0) {
      Tiles tiles({{upper, lower}, int(kLanes)});
      all_lanes(tiles, at, count, lanes, steps, kLanes);
      at.add = true;
    }
    if (rest == 0) continue;
    Tiles tiles({{upper, lower}, int(rest)});
    at.b.data += steps * kLanes;
    at.a.data += steps * kLanes * at.a.step;
    all_lanes(tiles, at, count, lanes, 1, rest);
  }
}

// ---- registers

#if defined(__x86_64__)
#define BRINE_PAIRS [[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16")]]

template <int R, int V>
BRINE_PAIRS void registers(int64_t pairs, Rows b, Lanes a, Sums c, Start start) {
  __m512 sum[R][V];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      sum[r][v] = _mm512_setzero_ps();
      if (start.add || start.factors) sum[r][v] = _mm512_loadu_ps(c.data + r * c.step + v * kLanes);
      if (start.factors) sum[r][v] *= _mm512_loadu_ps(start.factors + v * kLanes);
    }
  }
  for (int64_t p = 0; p < pairs; ++p) {
    __m512i x[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) x[v] = _mm512_loadu_si512(a.data + p * a.step + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const __m512i y = _mm512_set1_epi32(int(b.data[r * b.step + p]));
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        sum[r][v] = _mm512_dpbf16_ps(sum[r][v], __m512bh(x[v]), __m512bh(y));
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) _mm512_storeu_ps(c.data + r * c.step + v * kLanes, sum[r][v]);
  }
}

// All rows of V vectors of lanes: blocks of R, and of fewer at the end.
template <int R, int V>
void strip(int64_t rows, int64_t pairs, Rows b, Lanes a, Sums c, Start start) {
  int64_t r = 0;
  for (; r + R <= rows; r += R) {
    registers<R, V>(pairs, {b.data + r * b.step, b.step}, a, {c.data + r * c.step, c.step}, start);
  }
  if constexpr (R > 1) {
    if (r < rows) {
      strip<(R > 8   ? 8
             : R > 4 ? 4
                     : R / 2),
            V>(rows - r, pairs, {b.data + r * b.step, b.step}, a, {c.data + r * c.step, c.step},
               start);
    }
  }
}

void by_registers(int64_t rows, int64_t lanes, int64_t pairs, Rows b, Lanes a, Sums c,
                  Start start) {
  int64_t l = 0;
  auto strips = [&]<int R, int V>() {
    for (; l + V * kLanes <= lanes; l += V * kLanes) {
      strip<R, V>(rows, pairs, b, {a.data + l, a.step}, {c.data + l, c.step},
                  {start.add, start.factors ? start.factors + l : nullptr});
    }
  };
  strips.template operator()<6, 4>();
  strips.template operator()<12, 2>();
  strips.template operator()<12, 1>();
}
#endif

}  // namespace

bool has(Engine engine) {
  switch (engine) {
    case Engine::amx:
      return has_tiles();
    case Engine::avx512_bf16:
      return this_cpu_identity().avx512_bf16;
    case Engine::plain:
      return true;
    case Engine::none:
      break;
  }
  return false;
}

Engine engine() {
  for (Engine best : {Engine::amx, Engine::avx512_bf16}) {
    if (has(best)) return best;
  }
  return Engine::none;
}

void product(Engine engine, int64_t rows, int64_t lanes, int64_t pairs, Rows b, Lanes a, Sums c,
             Start start) {
  check(lanes % kLanes == 0 && has(engine), "pair_tile: ", lanes, " lanes must be a multiple of ",
        kLanes, ", on a CPU with the instructions");
#if defined(__x86_64__)
  if (engine == Engine::avx512_bf16) return by_registers(rows, lanes, pairs, b, a, c, start);
#endif
  for (int64_t r = 0; r < rows && start.factors; ++r) {
    float* row = c.data + r * c.step;
#pragma omp simd
    for (int64_t l = 0; l < lanes; ++l) row[l] *= start.factors[l];
  }
  const Job job{b, a, c, start.add || start.factors};
#if defined(__x86_64__)
  if (engine == Engine::amx) return by_tiles<AmxTiles>(job, rows, lanes, pairs);
#endif
  by_tiles<PlainTiles>(job, rows, lanes, pairs);
}

}  // namespace brine::pair_tile
