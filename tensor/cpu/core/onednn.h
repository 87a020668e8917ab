// The only interface to oneDNN: single-threaded pieces of work that the kernels distribute over
// threads.
//
// Every call runs on the calling thread only, inside a parallel loop or outside. The pieces of a
// product depend only on the sizes, so that any number of threads gives the same bits; oneDNN
// itself splits by the number of threads.
#pragma once

#include <cstdint>
#include <string>

#include "tensor/base/dtype.h"

namespace brine::onednn {

// op(X) is X, or its transpose; rows of X are `ld` elements apart.
struct Gemm {
  int64_t M = 0, N = 0, K = 0;
  bool ta = false, tb = false;
  int64_t lda = 0, ldb = 0, ldc = 0;
  float alpha = 1, beta = 0;
};

// c [M, N] = alpha op(a) [M, K] op(b) [K, N] + beta c; c is not read when beta = 0.
void gemm(const Gemm& g, const float* a, const float* b, float* c);
// The same with bf16 inputs; only where has_bf16_gemm().
void gemm(const Gemm& g, const bf16* a, const bf16* b, float* c);
// "2.6.3", of the library that is loaded.
std::string version();

// True when the CPU multiplies bf16 faster than f32.
bool has_bf16_gemm();

// A convolution of one image [rows, columns, channels]: cross-correlation, the token axis without
// padding, the columns padded with zeros to keep their number.
struct ImageConvolution {
  int64_t rows = 0, columns = 0;  // rows: of the result
  int64_t in = 0, out = 0;        // channels
  int64_t kernel_t = 1, kernel_w = 1;
  int64_t dilation = 1, stride = 1;
  bool bias = false, relu = false;
  bool half = false;  // inputs and weights in bf16; only where has_bf16_gemm()
};
enum class Pass { forward, data_gradient };

// Weights in the preferred order of a pass's primitive, made from [out, in, token, column].
int64_t packed_weights_size(const ImageConvolution& c, Pass pass);  // in elements
void pack_weights(const ImageConvolution& c, Pass pass, const float* w, float* packed);
void pack_weights(const ImageConvolution& c, Pass pass, const bf16* w, bf16* packed);

// y [rows, columns, out] from x; bias is read when c.bias.
void convolve(const ImageConvolution& c, const float* x, const float* packed, const float* bias,
              float* y);
void convolve(const ImageConvolution& c, const bf16* x, const bf16* packed, const float* bias,
              float* y);
// dx [rows, columns, in], all of it, from dy [rows + (kernel_t - 1) dilation, columns, out]: row i
// of dx takes tap k from row i + (kernel_t - 1 - k) dilation. stride = 1.
void convolve_data_gradient(const ImageConvolution& c, float* dx, const float* packed,
                            const float* dy);
void convolve_data_gradient(const ImageConvolution& c, float* dx, const bf16* packed,
                            const bf16* dy);

}  // namespace brine::onednn
