// Products of 4-bit codes with bytes: one register has 16 (or 8) lanes of queries, four channels
// each; the four codes of a key are broadcast. So no sum runs across a register.
//
// avx512_vnni reaches 1.6 products of 64 bytes a cycle on a Zen 5, whose limit is two.
#include "tensor/cpu/core/code_tile.h"

#include <algorithm>
#include <cstring>

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
  int64_t lanes, depth;
  const uint8_t* codes;
  const int8_t* u;
  int32_t* out;

  int32_t codes_at(int64_t key, int64_t c) const {
    int32_t four;
    std::memcpy(&four, codes + key * depth + c, 4);
    return four;
  }
};

void plain(const Job& job, int64_t keys) {
  for (int64_t j = 0; j < keys; ++j) {
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
}

#if defined(__x86_64__)
#define BRINE_VNNI512 \
  [[gnu::target("avx512f,avx512bw,avx512vl,avx512vnni"), gnu::always_inline]] inline
#define BRINE_AVX2 [[gnu::target("avx2"), gnu::always_inline]] inline

// An instruction set: registers of `kLanes` sums, and what a product of four channels adds. sum4 is
// exact for at most kChannels channels, then `wide` makes 32-bit sums of it.
struct Vnni512 {
  using Sums = __m512i;
  static constexpr int kLanes = 16, kKeys = 8, kVectors = 3;
  static constexpr int64_t kChannels = 1 << 16;
  BRINE_VNNI512 static Sums zero() { return _mm512_setzero_si512(); }
  BRINE_VNNI512 static Sums load(const void* p) { return _mm512_loadu_si512(p); }
  BRINE_VNNI512 static Sums all(int32_t codes) { return _mm512_set1_epi32(codes); }
  BRINE_VNNI512 static Sums sum4(Sums s, Sums codes, Sums u) {
    return _mm512_dpbusd_epi32(s, codes, u);
  }
  BRINE_VNNI512 static void put(int32_t* to, Sums s, bool add) {
    _mm512_storeu_si512(to, add ? _mm512_add_epi32(s, load(to)) : s);
  }
};

#if defined(__AVXVNNI__) || __GNUC__ >= 11
#define BRINE_AVXVNNI [[gnu::target("avx2,avxvnni"), gnu::always_inline]] inline
struct AvxVnni {
  using Sums = __m256i;
  static constexpr int kLanes = 8, kKeys = 4, kVectors = 2;
  static constexpr int64_t kChannels = 1 << 16;
  BRINE_AVXVNNI static Sums zero() { return _mm256_setzero_si256(); }
  BRINE_AVXVNNI static Sums load(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
  }
  BRINE_AVXVNNI static Sums all(int32_t codes) { return _mm256_set1_epi32(codes); }
  BRINE_AVXVNNI static Sums sum4(Sums s, Sums codes, Sums u) {
    return _mm256_dpbusd_avx_epi32(s, codes, u);
  }
  BRINE_AVXVNNI static void put(int32_t* to, Sums s, bool add) {
    if (add) s = _mm256_add_epi32(s, load(to));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), s);
  }
};
#endif

// Sums of pairs in 16 bits: 8 additions of at most 2 x 15 x 127 stay below 2^15.
struct Avx2 {
  using Sums = __m256i;
  static constexpr int kLanes = 8, kKeys = 4, kVectors = 2;
  static constexpr int64_t kChannels = 32;
  BRINE_AVX2 static Sums zero() { return _mm256_setzero_si256(); }
  BRINE_AVX2 static Sums load(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
  }
  BRINE_AVX2 static Sums all(int32_t codes) { return _mm256_set1_epi32(codes); }
  BRINE_AVX2 static Sums sum4(Sums s, Sums codes, Sums u) {
    return _mm256_add_epi16(s, _mm256_maddubs_epi16(codes, u));
  }
  BRINE_AVX2 static void put(int32_t* to, Sums s, bool add) {
    s = _mm256_madd_epi16(s, _mm256_set1_epi16(1));
    if (add) s = _mm256_add_epi32(s, load(to));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), s);
  }
};

// K keys, V registers of lanes from `lane` on. The sets are macros' targets: a function of another
// target is not inlined.
#define BRINE_CODE_TILES(name, set)                                                                \
  template <class Set, int K, int V>                                                               \
  [[gnu::target(set)]] void name##_tile(const Job& job, int64_t key, int64_t lane) {               \
    for (int64_t begin = 0; begin < job.depth; begin += Set::kChannels) {                          \
      const int64_t end = std::min(job.depth, begin + Set::kChannels);                             \
      typename Set::Sums sum[K][V];                                                                \
      _Pragma("GCC unroll 8") for (int k = 0; k < K; ++k) {                                        \
        _Pragma("GCC unroll 4") for (int v = 0; v < V; ++v) sum[k][v] = Set::zero();               \
      }                                                                                            \
      for (int64_t c = begin; c < end; c += 4) {                                                   \
        const int8_t* from = job.u + c * job.lanes + 4 * lane;                                     \
        typename Set::Sums u[V];                                                                   \
        _Pragma("GCC unroll 4") for (int v = 0; v < V; ++v) u[v] =                                 \
            Set::load(from + 4 * v * Set::kLanes);                                                 \
        _Pragma("GCC unroll 8") for (int k = 0; k < K; ++k) {                                      \
          const typename Set::Sums codes = Set::all(job.codes_at(key + k, c));                     \
          _Pragma("GCC unroll 4") for (int v = 0; v < V; ++v) sum[k][v] =                          \
              Set::sum4(sum[k][v], codes, u[v]);                                                   \
        }                                                                                          \
      }                                                                                            \
      _Pragma("GCC unroll 8") for (int k = 0; k < K; ++k) {                                        \
        int32_t* to = job.out + (key + k) * job.lanes + lane;                                      \
        _Pragma("GCC unroll 4") for (int v = 0; v < V; ++v)                                        \
            Set::put(to + v * Set::kLanes, sum[k][v], begin > 0);                                  \
      }                                                                                            \
    }                                                                                              \
  }                                                                                                \
  template <class Set, int V>                                                                      \
  void name##_strip(const Job& job, int64_t keys, int64_t lane) {                                  \
    int64_t j = 0;                                                                                 \
    for (; j + Set::kKeys <= keys; j += Set::kKeys) name##_tile<Set, Set::kKeys, V>(job, j, lane); \
    for (; j < keys; ++j) name##_tile<Set, 1, V>(job, j, lane);                                    \
  }                                                                                                \
  template <class Set>                                                                             \
  void name(const Job& job, int64_t keys) {                                                        \
    int64_t lane = 0;                                                                              \
    for (; lane + Set::kVectors * Set::kLanes <= job.lanes; lane += Set::kVectors * Set::kLanes)   \
      name##_strip<Set, Set::kVectors>(job, keys, lane);                                           \
    for (; lane + 2 * Set::kLanes <= job.lanes; lane += 2 * Set::kLanes)                           \
      name##_strip<Set, 2>(job, keys, lane);                                                       \
    for (; lane < job.lanes; lane += Set::kLanes) name##_strip<Set, 1>(job, keys, lane);           \
  }

BRINE_CODE_TILES(vnni512, "avx512f,avx512bw,avx512vl,avx512vnni")
BRINE_CODE_TILES(avx2, "avx2")
#ifdef BRINE_AVXVNNI
BRINE_CODE_TILES(avx_vnni, "avx2,avxvnni")
#endif
#undef BRINE_CODE_TILES
#elif defined(__ARM_FEATURE_DOTPROD)
void dot(const Job& job, int64_t keys) {
  for (int64_t lane = 0; lane < job.lanes; lane += 16) {
    for (int64_t j = 0; j < keys; ++j) {
      int32x4_t sum[4] = {};
      for (int64_t c = 0; c < job.depth; c += 4) {
        const int8x16_t codes = vreinterpretq_s8_s32(vdupq_n_s32(job.codes_at(j, c)));
        const int8_t* u = job.u + c * job.lanes + 4 * lane;
        for (int v = 0; v < 4; ++v) sum[v] = vdotq_s32(sum[v], codes, vld1q_s8(u + 16 * v));
      }
      for (int v = 0; v < 4; ++v) vst1q_s32(job.out + j * job.lanes + lane + 4 * v, sum[v]);
    }
  }
}
#endif

Engine find() {
  for (const Engine e : {Engine::avx512_vnni, Engine::avx_vnni, Engine::avx2, Engine::dot}) {
    if (has(e)) return e;
  }
  return Engine::plain;
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
  check(depth % 4 == 0 && lanes % 16 == 0, "code_tile: ", depth, " channels, ", lanes, " lanes");
  const Job job{lanes, depth, codes, u, out};
  switch (engine) {
#if defined(__x86_64__)
    case Engine::avx512_vnni:
      return vnni512<Vnni512>(job, keys);
    case Engine::avx2:
      return avx2<Avx2>(job, keys);
#ifdef BRINE_AVXVNNI
    case Engine::avx_vnni:
      return avx_vnni<AvxVnni>(job, keys);
#endif
#elif defined(__ARM_FEATURE_DOTPROD)
    case Engine::dot:
      return dot(job, keys);
#endif
    default:
      return plain(job, keys);
  }
}

}  // namespace brine::code_tile
