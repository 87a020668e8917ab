// Convolution by rows on the device, as on the CPU.
#include "tensor/kernels/conv.h"
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

TEST_CASE("cuda: a convolution by rows") {
  struct Case {
    int64_t B = 2, W = 6, C = 3, O = 5, kT = 3, kW = 3, dilation = 1;
    bool bias = true, relu = false;
  };
  for (const Case& c :
       {Case{}, Case{.dilation = 2, .relu = true}, Case{.kT = 1, .kW = 1, .bias = false},
        Case{.B = 3, .W = 13, .C = 20, .O = 48, .relu = true},
        Case{.B = 1, .W = 1, .C = 1, .O = 1, .kW = 5}, Case{.B = 0},
        Case{.B = 1, .W = 70, .C = 7, .O = 33, .kT = 5, .dilation = 3}}) {
    compare_both(join("row ", c.B, " ", c.W, " ", c.C, " ", c.O), [&](const On& on, Dtype dtype) {
      const int64_t margin = (c.kW - 1) / 2 * c.dilation, rows = (c.kT - 1) * c.dilation + 1;
      // A window of every second sequence: strided in B.
      Tensor all = on(normal({2 * c.B + 1, rows, c.W + 2 * margin, c.C}, 1, dtype));
      Tensor window = all.as_strided({c.B, rows, c.W + 2 * margin, c.C},
                                     {2 * all.stride(0), all.stride(1), c.C, 1});
      Tensor w = on(normal({c.O, c.C, c.kT, c.kW}, 2, dtype));
      Tensor b = c.bias ? on(normal({c.O}, 3, dtype)) : Tensor();
      Tensor packed = Tensor::empty({c.kT, c.kW, c.C, packed_outputs(c.O)}, dtype, w.device());
      Tensor y = Tensor::empty({c.B, c.W, c.O}, dtype, w.device()), z = Tensor::like(y);
      BRINE_CALL(w, pack_row_weights, packed, w);
      BRINE_CALL(w, push_row, window, on(normal({c.B, c.W, c.C}, 4, dtype)), margin);
      BRINE_CALL(w, convolve_row, y, window, packed, b, c.dilation, c.relu);
      BRINE_CALL(w, push_row, window, on(normal({c.B, c.W, c.C}, 5, dtype)), margin);
      BRINE_CALL(w, convolve_row, z, window, packed, b, c.dilation, c.relu);
      return std::vector{packed, y, z, all};
    });
  }
}

TEST_CASE("cuda: the row of a sequence has the same bits among any others") {
  if (!has_device()) return;
  const int64_t W = 9, C = 6, O = 20;
  const Tensor windows = normal({7, 3, W + 2, C}, 1), w = normal({O, C, 3, 3}, 2).to(kCuda);
  Tensor packed = Tensor::empty({3, 3, C, packed_outputs(O)}, Dtype::f32, kCuda);
  cuda::pack_row_weights(packed, w);
  auto rows = [&](int64_t start, int64_t n) {
    Tensor y = Tensor::empty({n, W, O}, Dtype::f32, kCuda);
    cuda::convolve_row(y, windows.slice(0, start, n).clone().to(kCuda), packed, {}, 1, false);
    return y.to(kCpu);
  };
  const Tensor all = rows(0, 7);
  CHECK(same_bits(rows(3, 1), all.slice(0, 3, 1)));
  CHECK(same_bits(rows(2, 4), all.slice(0, 2, 4)));
}
