// Values of ggml's quantised blocks (docs/gguf.md and the descriptions of its quantisations).
// x has any alignment; `blocks` blocks of 32 values, or of 256 for the types named _k, are written
// to y. d and m are f16. Every product is exact in f32 but the last one of q6_k, so that all
// compilers and instruction sets give the same bits.
#pragma once

#include <cstdint>

namespace brine::data {

// 32 values share a scale d; 4 bits a value, the first 16 values in the low halves of 16 bytes.
void dequantise_q4_0(const unsigned char* x, int64_t blocks, float* y);  // d (q - 8)
void dequantise_q4_1(const unsigned char* x, int64_t blocks, float* y);  // d q + m
// A fifth bit of each value in 4 more bytes.
void dequantise_q5_0(const unsigned char* x, int64_t blocks, float* y);  // d (q - 16)
void dequantise_q5_1(const unsigned char* x, int64_t blocks, float* y);  // d q + m
void dequantise_q8_0(const unsigned char* x, int64_t blocks, float* y);  // d q, q signed

// 8 groups of 32 values, each with a scale s and a minimum t of 6 bits: d s q - m t.
void dequantise_q4_k(const unsigned char* x, int64_t blocks, float* y);
void dequantise_q5_k(const unsigned char* x, int64_t blocks, float* y);
// 16 groups of 16 values, each with a signed scale s of 8 bits: d s (q - 32).
void dequantise_q6_k(const unsigned char* x, int64_t blocks, float* y);

}  // namespace brine::data
