// Convolution of one row at a time against the convolution of the whole image.
#include "tensor/kernels/conv.h"
#include "tensor/kernels/dense.h"
#include "tests/gradcheck.h"

using namespace brine;
using brine::test::close_to_scale;
using brine::test::normal;

TEST_CASE("convolve_row: the newest row of the causal convolution, as rows are pushed") {
  for (auto [C, O] : {std::pair<int64_t, int64_t>{1, 1}, {6, 3}, {24, 12}, {48, 48}, {5, 70}}) {
    for (int64_t kernel : {1, 3}) {
      for (int64_t dilation : {1, 2}) {
        const int64_t B = 2, T = 7, W = 11, span = (kernel - 1) * dilation, margin = span / 2;
        INFO(join(C, " to ", O, ", kernel ", kernel, ", dilation ", dilation));
        for (Dtype type : {Dtype::f32, Dtype::f64}) {
          const Tensor x = normal({B, T, W, C}, 1, type),
                       w = normal({O, C, kernel, kernel}, 2, type);
          const Tensor b = normal({O}, 3, type);
          Tensor padded = Tensor::zeros({B, span + T, W, C}, type);
          BRINE_CALL(x, copy, padded.slice(1, span, T), x);
          Tensor full = Tensor::empty({B, T, W, O}, type);
          BRINE_CALL(x, conv2d, full, padded, w, b, {.dilation = dilation, .relu = true});
          Tensor packed = Tensor::empty({kernel, kernel, C, packed_outputs(O)}, type);
          BRINE_CALL(x, pack_row_weights, packed, w);
          Tensor window = Tensor::zeros({B, span + 1, W + 2 * margin, C}, type);
          for (int64_t t = 0; t < T; ++t) {
            BRINE_CALL(x, push_row, window, x.slice(1, t, 1).contiguous().view({B, W, C}), margin);
            Tensor y = Tensor::empty({B, W, O}, type);
            BRINE_CALL(x, convolve_row, y, window, packed, b, dilation, true);
            CHECK(close_to_scale(y, full.slice(1, t, 1).contiguous().view({B, W, O}),
                                 type == Dtype::f64 ? 1e-13 : 1e-5));
          }
        }
      }
    }
  }
}
