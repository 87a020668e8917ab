// ggml's quantised blocks, one function a type.
#include "data/gguf/dequantise.h"

#include <bit>
#include <cstring>

#include "tensor/base/dtype.h"

namespace brine::data {
namespace {

float half_at(const unsigned char* x) {
  f16 value;
  std::memcpy(&value.bits, x, 2);
  return float(value);
}

uint32_t word_at(const unsigned char* x) {
  uint32_t value = 0;
  std::memcpy(&value, x, 4);
  return value;
}

int low(unsigned char byte) { return byte & 15; }
int high(unsigned char byte) { return byte >> 4; }

// Scale and minimum of group j of 8, each of 6 bits, from 12 bytes: the first four scales and
// minima are the low 6 bits of bytes 0-3 and 4-7; the others have their low halves in bytes 8-11
// and their upper two bits above those of the first ones.
struct ScaleMinimum {
  int scale, minimum;
};
ScaleMinimum six_bits(const unsigned char* s, int j) {
  if (j < 4) return {s[j] & 63, s[j + 4] & 63};
  return {low(s[j + 4]) | (s[j - 4] >> 6) << 4, high(s[j + 4]) | (s[j] >> 6) << 4};
}

// What q4_k and q5_k share: `fifth` has the fifth bit of value i of group j at bit j of byte i,
// null if there is none.
void dequantise_groups(const unsigned char* x, const unsigned char* fifth, const unsigned char* q,
                       float* y) {
  const float d = half_at(x), m = half_at(x + 2);
  for (int j = 0; j < 8; ++j) {
    const ScaleMinimum group = six_bits(x + 4, j);
    const float scale = d * float(group.scale), minimum = m * float(group.minimum);
    const unsigned char* four = q + j / 2 * 32;
    for (int i = 0; i < 32; ++i) {
      int value = j % 2 ? high(four[i]) : low(four[i]);
      if (fifth) value |= (fifth[i] >> j & 1) << 4;
      y[32 * j + i] = scale * float(value) - minimum;
    }
  }
}

}  // namespace

void dequantise_q4_0(const unsigned char* x, int64_t blocks, float* y) {
  for (; blocks > 0; --blocks, x += 18, y += 32) {
    const float d = half_at(x);
    for (int i = 0; i < 16; ++i) {
      y[i] = d * float(low(x[2 + i]) - 8);
      y[16 + i] = d * float(high(x[2 + i]) - 8);
    }
  }
}

void dequantise_q4_1(const unsigned char* x, int64_t blocks, float* y) {
  for (; blocks > 0; --blocks, x += 20, y += 32) {
    const float d = half_at(x), m = half_at(x + 2);
    for (int i = 0; i < 16; ++i) {
      y[i] = d * float(low(x[4 + i])) + m;
      y[16 + i] = d * float(high(x[4 + i])) + m;
    }
  }
}

void dequantise_q5_0(const unsigned char* x, int64_t blocks, float* y) {
  for (; blocks > 0; --blocks, x += 22, y += 32) {
    const float d = half_at(x);
    const uint32_t fifth = word_at(x + 2);
    for (int i = 0; i < 16; ++i) {
      y[i] = d * float((low(x[6 + i]) | int(fifth >> i & 1) << 4) - 16);
      y[16 + i] = d * float((high(x[6 + i]) | int(fifth >> (16 + i) & 1) << 4) - 16);
    }
  }
}

void dequantise_q5_1(const unsigned char* x, int64_t blocks, float* y) {
  for (; blocks > 0; --blocks, x += 24, y += 32) {
    const float d = half_at(x), m = half_at(x + 2);
    const uint32_t fifth = word_at(x + 4);
    for (int i = 0; i < 16; ++i) {
      y[i] = d * float(low(x[8 + i]) | int(fifth >> i & 1) << 4) + m;
      y[16 + i] = d * float(high(x[8 + i]) | int(fifth >> (16 + i) & 1) << 4) + m;
    }
  }
}

void dequantise_q8_0(const unsigned char* x, int64_t blocks, float* y) {
  for (; blocks > 0; --blocks, x += 34, y += 32) {
    const float d = half_at(x);
    for (int i = 0; i < 32; ++i) y[i] = d * float(std::bit_cast<int8_t>(x[2 + i]));
  }
}

void dequantise_q4_k(const unsigned char* x, int64_t blocks, float* y) {
  for (; blocks > 0; --blocks, x += 144, y += 256) dequantise_groups(x, nullptr, x + 16, y);
}

void dequantise_q5_k(const unsigned char* x, int64_t blocks, float* y) {
  for (; blocks > 0; --blocks, x += 176, y += 256) dequantise_groups(x, x + 16, x + 48, y);
}

// Values in two halves of 128: four runs of 32, whose low 4 bits are the low halves of 64 bytes and
// then their high halves, and whose upper 2 bits are in 32 bytes, two bits a run.
void dequantise_q6_k(const unsigned char* x, int64_t blocks, float* y) {
  for (; blocks > 0; --blocks, x += 210) {
    const float d = half_at(x + 208);
    for (int half = 0; half < 2; ++half) {
      const unsigned char *four = x + 64 * half, *two = x + 128 + 32 * half;
      for (int i = 0; i < 128; ++i) {
        const unsigned char byte = four[i % 64];
        const int bits = (i < 64 ? low(byte) : high(byte)) | (two[i % 32] >> (i / 32 * 2) & 3) << 4;
        const auto scale = std::bit_cast<int8_t>(x[192 + 8 * half + i / 16]);
        *y++ = d * float(scale) * float(bits - 32);
      }
    }
  }
}

}  // namespace brine::data
