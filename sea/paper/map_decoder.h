// The convolutional decoder of the map of columns (docs/method.md section 1.5).
#pragma once

#include <vector>

#include "nn/layers/conv.h"
#include "nn/layers/layers.h"
#include "sea/columns/stage.h"

namespace brine::sea {

// The decoder's convolutions by rows: for each its last rows.
struct RowDecoder {
  std::vector<Tensor> windows;  // [B, rows that it reads, columns + margins, channels]

  // The state of `count` sequences from `first` on, in the same memory.
  RowDecoder slots(int64_t first, int64_t count) const;
};

// The decoder's convolutions: the output of nu [B, H, T, c_h W] to scores [B, H, T, K].
class MapDecoder : public nn::Module {
 public:
  MapDecoder(nn::Init& init, int64_t heads, int64_t K, bool causal);
  // lengths i64 [B] or undefined. `images`, when given, receives the input of each convolution.
  Tensor operator()(const Tensor& x, const Tensor& lengths,
                    std::vector<Tensor>* images = nullptr) const;

  // The next row of every sequence, without a tape (map_decoder_step.cpp): x [B, H, 1, c_h W],
  // whose earlier rows were given to `rows` -> scores [B, H, 1, K]. Of causal models.
  Tensor step(const Tensor& x, const RowDecoder& rows) const;

  int64_t columns() const { return K_; }
  // All convolutions, in order.
  const std::vector<nn::Conv2d*>& convolutions() const { return convs_; }

 private:
  // x [B, H, T, c_h W] as the first convolution reads it.
  Tensor normed(const Tensor& x) const;

  int64_t heads_, K_, stride_;
  std::vector<nn::LayerNorm*> norms_;  // over columns, of its input and of its output; causal
  std::vector<nn::Conv2d*> convs_;     // the last is conv_out
};

}  // namespace brine::sea
