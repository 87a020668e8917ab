// The convolutional decoder of the map of columns (docs/method.md section 1.5).
#pragma once

#include <vector>

#include "nn/layers/conv.h"
#include "nn/layers/layers.h"
#include "sea/columns/stage.h"

namespace brine::sea {

// The decoder's convolutions: the output of nu [B, H, T, c_h W] to scores [B, H, T, K].
class MapDecoder : public nn::Module {
 public:
  MapDecoder(nn::Init& init, int64_t heads, int64_t K, bool causal);
  // lengths i64 [B] or undefined. `images`, when given, receives the input of each convolution.
  Tensor operator()(const Tensor& x, const Tensor& lengths,
                    std::vector<DecoderImage>* images = nullptr) const;

 private:
  // x [B, H, T, c_h W] as the first convolution reads it.
  Tensor normed(const Tensor& x) const;

  int64_t heads_, K_, stride_;
  std::vector<nn::LayerNorm*> norms_;  // over columns, of its input and of its output; causal
  std::vector<nn::Conv2d*> convs_;     // the last is conv_out
};

}  // namespace brine::sea
