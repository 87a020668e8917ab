// A cache of keys and values in 8 bits (docs/method.md section 8, "a cache in 8 bits"). Keys of
// complete blocks are two planes of 4 bits: the high one is the copy that blocks are chosen by.
#pragma once

#include "tensor/mask/blocks.h"

namespace brine {

// Of N complete blocks, and of the block that fills. Steps, mean keys and deviations may be stored
// in 16 bits.
struct CodedCache {
  KeyCodes keys;                  // steps [B, G, N, block], moments[0] [B, G, N, 2 d]
  Tensor low_codes;               // u8 as keys.codes: the next four bits of every channel
  Tensor first_keys;              // [B, G, block, d], those of a complete first block: they share
                                  // their mean with the first key, which may be far from all others
  Tensor key_scale;               // sigma [B, G, d]
  Tensor values;                  // u8 [B, G, N, block, d]: code + 128
  Tensor value_steps;             // [B, G, N, block]
  Tensor last_keys, last_values;  // [B, G, block, d]: token t is row t % block

  int64_t block() const { return last_keys.dim(2); }
};

// A key is mean + sigma * step * (byte - 127.5) / 16, byte = 16 high + low.
inline constexpr double kKeyByteCentre = 127.5;
inline constexpr int kValueByteCentre = 128;

// The low four bits of one channel: `r` is (k - mean) / sigma, z the high code, -8 to 7.
template <class T>
BRINE_HD uint8_t low_code(T r, T step, int z) {
  const T x = step > 0 ? (r / step - T(z)) * 16 : T(8);
  return uint8_t(x > 0 ? (x < 15 ? x : T(15)) : T(0));
}

// The byte of a value and a step above 0.
template <class T>
BRINE_HD uint8_t value_byte(T v, T step) {
  const T x = step > 0 ? v / step : T(0);
  const T rounded = x < 0 ? -T(int(T(0.5) - x)) : T(int(x + T(0.5)));
  return uint8_t(kValueByteCentre +
                 int(rounded > -127 ? (rounded < 127 ? rounded : T(127)) : T(-127)));
}

}  // namespace brine
