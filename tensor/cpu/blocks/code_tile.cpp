// Products of 4-bit codes with bytes: one register has 16 (or 8) lanes of queries, four channels
// each; the four codes of a key are broadcast. So no sum runs across a register.
//
// avx512_vnni reaches 1.6 products of 64 bytes a cycle on a Zen 5, whose limit is two; avx2, with
// its scores, .85 of 32 bytes on a Zen 3, whose limit is two.
#include "tensor/cpu/blocks/code_tile.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "tensor/base/error.h"
#include "tensor/cpu/core/cpu_identity.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif

namespace brine::code_tile {
namespace {

struct Job {
  int64_t keys, lanes, depth;
  const uint8_t* codes;
  const int8_t* u;
  int32_t* out;                    // sums, or scores as their bits
  const Scores* scores = nullptr;  // null: sums

  int32_t codes_at(int64_t key, int64_t c) const {
    int32_t four;
    std::memcpy(&four, codes + key * depth + c, 4);
    return four;
  }
};

// Scores of sums, for engines that do not compute them.
void score(const Job& job) {
  const Scores& to = *job.scores;
  std::fill_n(to.largest, job.lanes, std::numeric_limits<float>::lowest());
  for (int64_t j = 0; j < job.keys; ++j) {
    int32_t* out = job.out + j * job.lanes;
#pragma omp simd
    for (int64_t l = 0; l < job.lanes; ++l) {
      const float y = (float(out[l]) - to.offsets[l]) * to.steps[j];
      out[l] = std::bit_cast<int32_t>(y);
      to.largest[l] = y > to.largest[l] ? y : to.largest[l];
    }
  }
}

void plain(const Job& job) {
  for (int64_t j = 0; j < job.keys; ++j) {
    int32_t* out = job.out + j * job.lanes;
    std::fill_n(out, job.lanes, 0);
    for (int64_t c = 0; c < job.depth; c += 4) {
      const uint8_t* code = job.codes + j * job.depth + c;
      const int8_t* u = job.u + c * job.lanes;
      for (int64_t l = 0; l < job.lanes; ++l) {
        for (int i = 0; i < 4; ++i) out[l] += int32_t(code[i]) * u[4 * l + i];
      }
    }
  }
  if (job.scores) score(job);
}

#if defined(__x86_64__)
#define BRINE_VNNI512 \
  [[gnu::target("avx512f,avx512bw,avx512vl,avx512vnni"), gnu::always_inline]] inline
#define BRINE_AVX2 [[gnu::target("avx2"), gnu::always_inline]] inline

// An instruction set: registers of kLanes sums. sum4() adds the products of four channels, exactly
// for at most kChannels from Strip::base on; whole() makes 32-bit sums of them.
struct Vnni512 {
  using Sums = __m512i;
  typedef float Floats __attribute__((vector_size(64)));
  typedef int Ints __attribute__((vector_size(64)));
  static constexpr int kLanes = 16, kKeys = 8, kVectors = 3;
  static constexpr int64_t kChannels = 1 << 16;
  static constexpr bool kCentred = false;
  BRINE_VNNI512 static Sums zero() { return _mm512_setzero_si512(); }
  BRINE_VNNI512 static Sums load(const void* p) { return _mm512_loadu_si512(p); }
  BRINE_VNNI512 static void store(void* p, Sums s) { _mm512_storeu_si512(p, s); }
  BRINE_VNNI512 static Sums all(int32_t codes) { return _mm512_set1_epi32(codes); }
  BRINE_VNNI512 static void keep(Sums&) {}
  BRINE_VNNI512 static Sums sum4(Sums s, Sums codes, Sums u) {
    return _mm512_dpbusd_epi32(s, codes, u);
  }
  BRINE_VNNI512 static Sums whole(Sums s) { return s; }
  BRINE_VNNI512 static Sums add(Sums a, Sums b) { return _mm512_add_epi32(a, b); }
};

// Sums of pairs in 16 bits. They begin at -8 times the sum of u, as if codes went from -8 to 7: 16
// additions of at most 2 x 8 x 127 stay below 2^15, and a carry on the way does not matter.
struct Avx2 {
  using Sums = __m256i;
  typedef float Floats __attribute__((vector_size(32)));
  typedef int Ints __attribute__((vector_size(32)));
  static constexpr int kLanes = 8, kKeys = 4, kVectors = 2;
  static constexpr int64_t kChannels = 64;
  static constexpr bool kCentred = true;
  BRINE_AVX2 static Sums zero() { return _mm256_setzero_si256(); }
  BRINE_AVX2 static Sums load(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
  }
  BRINE_AVX2 static void store(void* p, Sums s) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), s);
  }
  BRINE_AVX2 static Sums all(int32_t codes) { return _mm256_set1_epi32(codes); }
  // In a register: read from memory by each product, the loads would be the limit.
  BRINE_AVX2 static void keep(Sums& s) { asm("" : "+x"(s)); }
  BRINE_AVX2 static Sums sum4(Sums s, Sums codes, Sums u) {
    return _mm256_add_epi16(s, _mm256_maddubs_epi16(codes, u));
  }
  BRINE_AVX2 static Sums minus(Sums s) { return _mm256_sub_epi16(zero(), s); }
  BRINE_AVX2 static Sums whole(Sums s) { return _mm256_madd_epi16(s, _mm256_set1_epi16(1)); }
  BRINE_AVX2 static Sums add(Sums a, Sums b) { return _mm256_add_epi32(a, b); }
};

#if __GNUC__ >= 11
#define BRINE_AVXVNNI [[gnu::target("avx2,avxvnni"), gnu::always_inline]] inline
struct AvxVnni : Avx2 {
  static constexpr int64_t kChannels = 1 << 16;
  static constexpr bool kCentred = false;
  BRINE_AVXVNNI static Sums sum4(Sums s, Sums codes, Sums u) {
    return _mm256_dpbusd_avx_epi32(s, codes, u);
  }
  BRINE_AVXVNNI static Sums whole(Sums s) { return s; }
};
#endif

// The channels [begin, end) of a strip of lanes, and what its sums begin at.
template <class Set, int V>
struct Strip {
  int64_t lane, begin, end;
  typename Set::Sums base[V];   // that sum4() starts from
  typename Set::Sums whole[V];  // that is added to the 32-bit sums
};

// K keys, V registers of lanes. A macro for each target: a function of another target is not
// inlined.
#define BRINE_CODE_TILES(name, target_set)                                                         \
  template <class Set, int K, int V>                                                               \
  [[gnu::target(target_set)]] void name##_tile(const Job& job, const Strip<Set, V>& strip,         \
                                               int64_t key) {                                      \
    constexpr int W = Set::kLanes;                                                                 \
    const int64_t lanes = job.lanes, depth = job.depth;                                            \
    typename Set::Sums sum[K][V];                                                                  \
    _Pragma("GCC unroll 8") for (int k = 0; k < K; ++k) {                                          \
      _Pragma("GCC unroll 4") for (int v = 0; v < V; ++v) sum[k][v] = strip.base[v];               \
    }                                                                                              \
    const int8_t* from = job.u + strip.begin * lanes + 4 * strip.lane;                             \
    for (int64_t c = strip.begin; c < strip.end; c += 4, from += 4 * lanes) {                      \
      typename Set::Sums u[V];                                                                     \
      _Pragma("GCC unroll 4") for (int v = 0; v < V; ++v) {                                        \
        u[v] = Set::load(from + 4 * v * W);                                                        \
        Set::keep(u[v]);                                                                           \
      }                                                                                            \
      _Pragma("GCC unroll 8") for (int k = 0; k < K; ++k) {                                        \
        const typename Set::Sums codes = Set::all(job.codes_at(key + k, c));                       \
        _Pragma("GCC unroll 4") for (int v = 0; v < V; ++v) sum[k][v] =                            \
            Set::sum4(sum[k][v], codes, u[v]);                                                     \
      }                                                                                            \
    }                                                                                              \
    int32_t* const out = job.out + key * lanes + strip.lane;                                       \
    _Pragma("GCC unroll 8") for (int k = 0; k < K; ++k) {                                          \
      _Pragma("GCC unroll 4") for (int v = 0; v < V; ++v) {                                        \
        sum[k][v] = Set::whole(sum[k][v]);                                                         \
        if (Set::kCentred) sum[k][v] = Set::add(sum[k][v], strip.whole[v]);                        \
        if (strip.begin > 0) sum[k][v] = Set::add(sum[k][v], Set::load(out + k * lanes + v * W));  \
      }                                                                                            \
    }                                                                                              \
    if (!job.scores || strip.end < depth) {                                                        \
      _Pragma("GCC unroll 8") for (int k = 0; k < K; ++k) {                                        \
        _Pragma("GCC unroll 4") for (int v = 0; v < V; ++v)                                        \
            Set::store(out + k * lanes + v * W, sum[k][v]);                                        \
      }                                                                                            \
      return;                                                                                      \
    }                                                                                              \
    const float* const steps = job.scores->steps + key;                                            \
    const float* const offsets = job.scores->offsets + strip.lane;                                 \
    float* const all_largest = job.scores->largest + strip.lane;                                   \
    _Pragma("GCC unroll 4") for (int v = 0; v < V; ++v) {                                          \
      typename Set::Floats offset, largest;                                                        \
      std::memcpy(&offset, offsets + v * W, sizeof offset);                                        \
      std::memcpy(&largest, all_largest + v * W, sizeof largest);                                  \
      _Pragma("GCC unroll 8") for (int k = 0; k < K; ++k) {                                        \
        /* A cast: std::bit_cast would be a function of the program's own target. */               \
        const auto whole = typename Set::Ints(sum[k][v]);                                          \
        const auto y = (__builtin_convertvector(whole, typename Set::Floats) - offset) * steps[k]; \
        largest = y > largest ? y : largest;                                                       \
        std::memcpy(out + k * lanes + v * W, &y, sizeof y);                                        \
      }                                                                                            \
      std::memcpy(all_largest + v * W, &largest, sizeof largest);                                  \
    }                                                                                              \
  }                                                                                                \
  template <class Set, int V>                                                                      \
  [[gnu::target(target_set)]] void name##_strip(const Job& job, int64_t lane) {                    \
    for (int64_t begin = 0; begin < job.depth; begin += Set::kChannels) {                          \
      Strip<Set, V> strip{lane, begin, std::min(job.depth, begin + Set::kChannels), {}, {}};       \
      if constexpr (Set::kCentred) {                                                               \
        for (int v = 0; v < V; ++v) {                                                              \
          typename Set::Sums sum = Set::zero();                                                    \
          for (int64_t c = begin; c < strip.end; c += 4) {                                         \
            sum = Set::sum4(sum, Set::all(0x08080808),                                             \
                            Set::load(job.u + c * job.lanes + 4 * (lane + v * Set::kLanes)));      \
          }                                                                                        \
          strip.base[v] = Set::minus(sum);                                                         \
          strip.whole[v] = Set::whole(sum);                                                        \
        }                                                                                          \
      }                                                                                            \
      int64_t j = 0;                                                                               \
      for (; j + Set::kKeys <= job.keys; j += Set::kKeys) {                                        \
        name##_tile<Set, Set::kKeys, V>(job, strip, j);                                            \
      }                                                                                            \
      for (; j < job.keys; ++j) name##_tile<Set, 1, V>(job, strip, j);                             \
    }                                                                                              \
  }                                                                                                \
  template <class Set>                                                                             \
  void name(const Job& job) {                                                                      \
    constexpr int64_t W = Set::kLanes;                                                             \
    if (job.scores)                                                                                \
      std::fill_n(job.scores->largest, job.lanes, std::numeric_limits<float>::lowest());           \
    int64_t lane = 0;                                                                              \
    for (; lane + Set::kVectors * W <= job.lanes; lane += Set::kVectors * W) {                     \
      name##_strip<Set, Set::kVectors>(job, lane);                                                 \
    }                                                                                              \
    for (; lane + 2 * W <= job.lanes; lane += 2 * W) name##_strip<Set, 2>(job, lane);              \
    for (; lane < job.lanes; lane += W) name##_strip<Set, 1>(job, lane);                           \
  }

BRINE_CODE_TILES(vnni512, "avx512f,avx512bw,avx512vl,avx512vnni")
BRINE_CODE_TILES(avx2, "avx2")
#ifdef BRINE_AVXVNNI
BRINE_CODE_TILES(avx_vnni, "avx2,avxvnni")
#endif
#undef BRINE_CODE_TILES
#elif defined(__ARM_FEATURE_DOTPROD)
void dot(const Job& job) {
  for (int64_t lane = 0; lane < job.lanes; lane += 16) {
    for (int64_t j = 0; j < job.keys; ++j) {
      int32x4_t sum[4] = {};
      for (int64_t c = 0; c < job.depth; c += 4) {
        const int8x16_t codes = vreinterpretq_s8_s32(vdupq_n_s32(job.codes_at(j, c)));
        const int8_t* u = job.u + c * job.lanes + 4 * lane;
        for (int v = 0; v < 4; ++v) sum[v] = vdotq_s32(sum[v], codes, vld1q_s8(u + 16 * v));
      }
      for (int v = 0; v < 4; ++v) vst1q_s32(job.out + j * job.lanes + lane + 4 * v, sum[v]);
    }
  }
  if (job.scores) score(job);
}
#endif

Engine find() {
  for (const Engine e : {Engine::avx512_vnni, Engine::avx_vnni, Engine::avx2, Engine::dot}) {
    if (has(e)) return e;
  }
  return Engine::plain;
}

void run(Engine engine, const Job& job) {
  check(job.depth % 4 == 0 && job.lanes % 16 == 0, "code_tile: ", job.depth, " channels, ",
        job.lanes, " lanes");
  switch (engine) {
#if defined(__x86_64__)
    case Engine::avx512_vnni:
      return vnni512<Vnni512>(job);
    case Engine::avx2:
      return avx2<Avx2>(job);
#ifdef BRINE_AVXVNNI
    case Engine::avx_vnni:
      return avx_vnni<AvxVnni>(job);
#endif
#elif defined(__ARM_FEATURE_DOTPROD)
    case Engine::dot:
      return dot(job);
#endif
    default:
      return plain(job);
  }
}

}  // namespace

bool has(Engine engine) {
  switch (engine) {
    case Engine::plain:
      return true;
#if defined(__x86_64__)
    case Engine::avx2:
      return __builtin_cpu_supports("avx2") != 0;
#ifdef BRINE_AVXVNNI
    case Engine::avx_vnni:
      return this_cpu_identity().avx_vnni;
#endif
    case Engine::avx512_vnni:
      return __builtin_cpu_supports("avx512vnni") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
             __builtin_cpu_supports("avx512vl") != 0;
#elif defined(__ARM_FEATURE_DOTPROD)
    case Engine::dot:
      return true;
#endif
    default:
      return false;
  }
}

Engine engine() {
  static const Engine found = find();
  return found;
}

void product(Engine engine, int64_t keys, int64_t lanes, int64_t depth, const uint8_t* codes,
             const int8_t* u, int32_t* out) {
  run(engine, {keys, lanes, depth, codes, u, out});
}

void scores(Engine engine, int64_t keys, int64_t lanes, int64_t depth, const uint8_t* codes,
            const int8_t* u, const Scores& to, float* out) {
  run(engine, {keys, lanes, depth, codes, u, reinterpret_cast<int32_t*>(out), &to});
}

}  // namespace brine::code_tile
