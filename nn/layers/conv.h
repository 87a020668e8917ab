// Convolution of images [B, tokens, columns, channels], causal along the tokens or centred.
#pragma once

#include <cmath>

#include "autograd/ops.h"
#include "nn/layers/module.h"

namespace brine::nn {

struct Conv2dConfig {
  int64_t in = 1, out = 1;  // channels
  int64_t kernel = 3;       // odd: number of rows and columns that it reads
  int64_t dilation = 1;     // on both axes
  int64_t stride = 1;       // on the token axis
  bool causal = true;       // row t reads rows <= t; else as many after it as before
  bool bias = true;
};

// Weight [out, in, kernel, kernel] and bias from U(+-1/sqrt(fan in)). Columns are padded by zeros
// on both sides, tokens depending on `causal`.
struct Conv2d : Module {
  Conv2d(Init& init, const Conv2dConfig& config)
      : config(checked(config)),
        weight(parameter(
            "weight",
            init.uniform({config.out, config.in, config.kernel, config.kernel}, bound(config)))),
        bias(config.bias ? &parameter("bias", init.uniform({config.out}, bound(config)), false)
                         : nullptr) {}

  // Rows of zeros that the first and the last row read.
  Halo halo() const {
    const int64_t span = (config.kernel - 1) * config.dilation;
    return config.causal ? Halo{span, 0} : Halo{span / 2, span / 2};
  }

  // x [B, T, W, in] -> [B, ceil(T / stride), W, out]. Rows from lengths[b] on (i64 [B] or undefined
  // = T) are read as zeros; the corresponding rows of the result are 0.
  Tensor operator()(const Tensor& x, const Tensor& lengths = {}) const {
    check(x.rank() == 4 && x.dim(3) == config.in, "conv2d: x must be [B, T, W, ", config.in,
          "], got ", x.shape());
    const Halo around = halo();
    Tensor padded = upsample(x, {.tokens = x.dim(1),
                                 .columns = x.dim(2),
                                 .halo_before = around.before,
                                 .halo_after = around.after,
                                 .lengths = lengths});
    return of_padded(padded, {.lengths = lengths, .row_stride = config.stride});
  }

  // The same for an image that already has halo() around it, without a copy; `how` gives additional
  // operations (ReLU, the rows that the next convolution reads). Dilation and stride are the
  // module's.
  Tensor of_padded(const Tensor& x, Convolution how) const {
    how.dilation = config.dilation;
    how.stride = config.stride;
    return conv2d(x, weight, bias ? bias->value : Tensor(), how);
  }

  Conv2dConfig config;
  Parameter& weight;
  Parameter* bias;  // [out], null when there is none

 private:
  static const Conv2dConfig& checked(const Conv2dConfig& c) {
    check(c.in >= 1 && c.out >= 1, "conv2d: ", c.in, " to ", c.out, " channels");
    check(c.kernel >= 1 && c.kernel % 2 == 1, "conv2d: kernel ", c.kernel, " must be odd");
    check(c.dilation >= 1 && c.stride >= 1, "conv2d: dilation ", c.dilation, " and stride ",
          c.stride, " must be at least 1");
    return c;
  }
  static double bound(const Conv2dConfig& c) {
    return 1 / std::sqrt(double(c.in * c.kernel * c.kernel));
  }
};

}  // namespace brine::nn
