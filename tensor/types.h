// Values that kernels, ops and modules share: small structs without behaviour.
#pragma once

#include "tensor/tensor.h"

namespace brine {

// Which keys a row sees. Row t of sequence b sees w = 0 keys when t >= L_b, else t + 1 (causal) or
// L_b keys, ordinals 0..w-1. `lengths` is i64 [B]; undefined means L = T.
struct Visibility {
  bool causal = true;
  Tensor lengths = {};
  // Of causal rows without lengths: the position of row 0, with the keys before it. Only for ops
  // that say so.
  int64_t first = 0;
};

// Functions of one number between linear layers. gelu is the exact one (Hendrycks and Gimpel 2016),
// gelu_tanh x sigmoid(2 sqrt(2 / pi) (x + .044715 x^3)), silu x sigmoid(x).
enum class Activation : uint8_t { relu, gelu, gelu_tanh, silu };

// The rows and borders of sums of keys over columns (docs/method.md section 1.6).
struct ColumnGrid {
  int64_t step = 1;   // row r is that of query r step
  int64_t units = 0;  // least number of units in a column of several keys; 0: a unit is one key

  ColumnGrid(int64_t step = 1, int64_t units = 0) : step(step), units(units) {}
};

// A teacher's logits: all of them, or the largest of each row.
struct TopLogits {
  Tensor values;  // [R, n] the n largest logits in descending order, or all V of them (no ids)
  Tensor ids;     // i32 [R, n], undefined when values has all V
  Tensor lse;     // [R] log-sum-exp of the whole row (values may be a part of it)
};

// One step of AdamW with decoupled decay (Loshchilov and Hutter 2019):
// w -= lr (m^ / (sqrt(v^) + eps) + decay w).
struct AdamwStep {
  double learning_rate = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  double grad_scale = 1;  // multiplies the gradient first (clip, accumulation)
  int64_t step = 1;       // counts from 1, for the bias correction
};

// A convolution of images [B, tokens, columns, channels]. The token axis is never padded by the
// kernel: the input contains the rows before and after it that the convolution reads (zeros), and
// the output is allocated with the rows that the next convolution reads.
struct Convolution {
  int64_t stride = 1;  // on the token axis
  bool relu = false;
  int64_t halo_before = 0, halo_after = 0;  // rows of zeros around the result
  // Row i of the result of sequence b is 0 when i row_stride >= lengths[b]; i64 [B], or undefined.
  Tensor lengths = {};
  int64_t row_stride = 1;
};

// Number of output rows for `rows` input rows; 0 when there are too few.
inline int64_t convolved_rows(int64_t rows, int64_t kernel, const Convolution& conf) {
  return rows < kernel ? 0 : (rows - kernel) / conf.stride + 1;
}

// An upsampling of images by the nearest row and column.
struct Upsampling {
  int64_t tokens = 0, columns = 0;          // T and K of the result
  int64_t stride = 1;                       // row t reads row floor(t / stride)
  int64_t halo_before = 0, halo_after = 0;  // rows of zeros around the result
  Tensor lengths = {};                      // i64 [B] or undefined: row t is 0 when t >= lengths[b]
};

// Rows of zeros before and after an image.
struct Halo {
  int64_t before = 0, after = 0;
};

// Whether the random features are of queries or of keys: softmax features of keys take their
// maximum over a whole sequence.
enum class FeatureSide { queries, keys };

}  // namespace brine
