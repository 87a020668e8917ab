// Convolution of images [B, tokens, columns, channels], causal along the tokens or centred.
#pragma once

#include <cmath>

#include "autograd/ops.h"
#include "nn/layers/module.h"

namespace brine::nn {

struct Conv2dConfig {
  int64_t in = 1, out = 1;  // channels
  int64_t kernel = 3;       // odd: number of rows and columns that it reads
  int64_t stride = 1;       // on the token axis
  bool causal = true;       // row t reads rows <= t; else as many after it as before
  bool bias = true;
};

// Weight [out, in, kernel, kernel] and bias from U(+-1/sqrt(fan in)). Columns are padded by zeros
// on both sides.
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
    const int64_t span = config.kernel - 1;
    return config.causal ? Halo{span, 0} : Halo{span / 2, span / 2};
  }

  // x [B, rows, W, in] has halo() around it; `how` gives additional operations (ReLU, the rows that
  // the next convolution reads). The stride is the module's.
  Tensor of_padded(const Tensor& x, Convolution how) const {
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
    check(c.stride >= 1, "conv2d: stride ", c.stride, " must be at least 1");
    return c;
  }
  static double bound(const Conv2dConfig& c) {
    return 1 / std::sqrt(double(c.in * c.kernel * c.kernel));
  }
};

}  // namespace brine::nn
