// The products of tensor cores on the CPU, as exact as on the devices.
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
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

float toward_zero(double x) {
  const auto nearest = float(x);
  return std::fabs(double(nearest)) > std::fabs(x) ? std::nextafter(nearest, 0.0f) : nearest;
}

// The sum of a step as tensor cores make it (Fasi, Higham, Mikaitis and Pranesh 2021, "Numerical
// behavior of NVIDIA tensor cores"): every addend is cut, not rounded, at the 24th bit of the
// largest one, and so is the sum; those of many steps drift toward zero. Newer devices keep a few
// more bits of the addends.
float truncated_sum(const double (&addends)[9]) {
  double largest = 0, plain = 0;
  for (const double x : addends) {
    largest = std::max(largest, std::fabs(x));
    plain += x;
  }
  if (!(largest > 0) || !std::isfinite(plain)) return float(plain);
  // 2^(23 - exponent of the largest), whose bits are an exponent alone.
  const uint64_t exponent = std::bit_cast<uint64_t>(largest) >> 52;
  const auto power = [](uint64_t biased) { return std::bit_cast<double>(biased << 52); };
  const double up = power(2 * 1023 + 23 - exponent), down = power(exponent - 23);
  int64_t sum = 0;
  for (const double x : addends) sum += int64_t(x * up);  // a conversion cuts
  return toward_zero(double(sum) * down);
}

std::atomic<int64_t> multiplied = 0;  // lanes, whose results have 4 x 8 products

}  // namespace

void multiply_add(float (&c)[4], const float (&a)[4], const float (&b)[2]) {
  multiplied.fetch_add(1, std::memory_order_relaxed);
  constexpr unsigned kAll = 0xffffffffu;
  auto check_factor = [](float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    if (bits & 0x1fffu && std::isfinite(x)) die();
  };
  for (float x : a) check_factor(x);
  for (float x : b) check_factor(x);
  float left[32][4], right[32][4];  // b in the first two
  std::memcpy(left, warp_exchange(kAll, a, sizeof a), sizeof left);
  std::memcpy(right, warp_exchange(kAll, b, sizeof b), sizeof right);
  const int g = lane() / 4, t = lane() % 4;
  for (int i = 0; i < 4; ++i) {
    const int row = i / 2, column = 2 * t + i % 2;
    double addends[9] = {c[i]};
    for (int k = 0; k < 8; ++k) {  // exact: products of 11 bits each
      addends[k + 1] =
          double(left[g * 4 + k % 4][row + k / 4 * 2]) * right[column * 4 + k % 4][k / 4];
    }
    c[i] = truncated_sum(addends);
  }
}

}  // namespace emulator

extern "C" double brine_emulated_multiplications() { return 32.0 * double(emulator::multiplied); }
