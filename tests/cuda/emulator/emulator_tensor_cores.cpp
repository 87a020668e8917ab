// The products of tensor cores on the CPU, as exact as on the devices.
#include <cuda_runtime.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace emulator {
namespace {

[[noreturn]] void die() {
  std::fprintf(stderr, "emulator: a factor of tensor cores is not rounded to TF32\n");
  std::abort();
}

// The 4 results of a lane.
using Doubles = double __attribute__((vector_size(32)));
using Bits = uint64_t __attribute__((vector_size(32)));
using Integers = int32_t __attribute__((vector_size(16)));
using Floats = float __attribute__((vector_size(16)));

constexpr int kAddends = 9;  // of a result: what it was, and 8 products

// The sums of a step as tensor cores make them (Fasi, Higham, Mikaitis and Pranesh 2021, "Numerical
// behavior of NVIDIA tensor cores"): every addend is cut, not rounded, at the 24th bit of the
// largest one, and so is the sum; those of many steps drift toward zero. Newer devices keep a few
// more bits of the addends.
void truncated_sums(const Doubles (&addends)[kAddends], float (&sums)[4]) {
  Doubles largest = {}, plain = {};
  for (const Doubles& x : addends) {
    const auto size = (Doubles)((Bits)x & ~(uint64_t(1) << 63));
    largest = largest < size ? size : largest;
    plain += x;
  }
  // 2^(23 - exponent of the largest), whose bits are an exponent alone.
  const Bits exponent = (Bits)largest >> 52;
  const Doubles up = (Doubles)((2 * 1023 + 23 - exponent) << 52);
  const Doubles down = (Doubles)((exponent - 23) << 52);
  Integers cut = {};
  for (const Doubles& x : addends) cut += __builtin_convertvector(x * up, Integers);  // cuts
  const Doubles exact = __builtin_convertvector(cut, Doubles) * down;
  // Without the bits that a float lacks the conversion is exact, but for results that are subnormal
  // or too large.
  const auto kept = (Doubles)((Bits)exact & ~((uint64_t(1) << 29) - 1));
  const Floats nearest = __builtin_convertvector(kept, Floats);
  for (int i = 0; i < 4; ++i) {
    const bool is_plain = !(largest[i] > 0) || !std::isfinite(plain[i]);
    const bool beyond = std::fabs(double(nearest[i])) > std::fabs(exact[i]);
    sums[i] = is_plain ? float(plain[i]) : beyond ? std::nextafter(nearest[i], 0.0f) : nearest[i];
  }
}

}  // namespace

void multiply_add(float (&c)[4], const float (&a)[4], const float (&b)[2]) {
  constexpr unsigned kAll = 0xffffffffu;
  auto check_factor = [](float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    if (bits & 0x1fffu && std::isfinite(x)) die();
  };
  for (float x : a) check_factor(x);
  for (float x : b) check_factor(x);
  const int g = lane() / 4, t = lane() % 4;
  // Of the lanes that have rows g and g + 8: a copy, since other lanes write the slots of the next
  // exchange but one while this lane still multiplies.
  float left[4][4];
  std::memcpy(left, warp_exchange(kAll, a, sizeof a) + size_t(g) * sizeof left, sizeof left);
  // Of lane l at [l][0..1].
  const auto* right = reinterpret_cast<const float(*)[4]>(warp_exchange(kAll, b, sizeof b));
  // Result i is in row g + 8 (i / 2) and column 2 t + i % 2.
  Doubles addends[kAddends] = {{c[0], c[1], c[2], c[3]}};
  for (int k = 0; k < 8; ++k) {  // exact: products of 11 bits each
    const float* rows = left[k % 4] + k / 4 * 2;
    const double upper = rows[0], lower = rows[1];
    const double first = right[8 * t + k % 4][k / 4], second = right[8 * t + 4 + k % 4][k / 4];
    addends[k + 1] = Doubles{upper, upper, lower, lower} * Doubles{first, second, first, second};
  }
  truncated_sums(addends, c);
}

void multiply_add(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  constexpr unsigned kAll = 0xffffffffu;
  const int g = lane() / 4, t = lane() % 4;
  int8_t left[4][4][4], right[8][2][4];  // by lane, register and byte
  std::memcpy(left, warp_exchange(kAll, a, sizeof a) + size_t(g) * sizeof left, sizeof left);
  const unsigned char* slots = warp_exchange(kAll, b, sizeof b);
  for (int l = 0; l < 8; ++l) std::memcpy(right[l], slots + size_t(8 * t + l) * 16, sizeof b);
  for (int i = 0; i < 4; ++i) {
    for (int k = 0; k < 32; ++k) {
      const int from = k % 16 / 4, half = k / 16;
      c[i] += left[from][2 * half + i / 2][k % 4] * right[i % 2 * 4 + from][half][k % 4];
    }
  }
}

}  // namespace emulator
