// Convolution in 16 bits, of padded sequences and of windows on the device, as on the CPU; others
// are in tests/autograd/conv.
#include "tensor/kernels/conv.h"
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

namespace {

struct ConvCase {
  int64_t B = 2, rows_in = 9, W = 5, C = 3, O = 4, kT = 3, kW = 3;
  bool bias = true;
  Convolution conf = {};
  std::vector<int64_t> lengths = {};
  bool lengths_on_device = false;
  Dtype half = Dtype::f32;  // of image and weights, where it is bf16 or f16
};

std::vector<Tensor> run(const ConvCase& c, const On& on, Dtype dtype) {
  Convolution conf = c.conf;
  if (!c.lengths.empty()) {
    conf.lengths = Tensor::from(c.lengths, {c.B});
    if (c.lengths_on_device) conf.lengths = on(conf.lengths);
  }
  const Dtype in = c.half == Dtype::f32 ? dtype : c.half;
  const int64_t rows = conf.halo_before + convolved_rows(c.rows_in, c.kT, conf) + conf.halo_after;
  Tensor x = on(normal({c.B, c.rows_in, c.W, c.C}, 1, dtype).to(in));
  Tensor w = on(normal({c.O, c.C, c.kT, c.kW}, 2, dtype).to(in));
  Tensor b = c.bias ? on(normal({c.O}, 3, dtype)) : Tensor();
  Tensor y = Tensor::empty({c.B, rows, c.W, c.O}, dtype, x.device());
  BRINE_CALL(x, conv2d, y, x, w, b, conf);
  // A gradient that the type of the image has, too: cuDNN rounds it to that.
  Tensor dy = on(normal(y.shape(), 4, dtype).to(in).to(dtype)),
         dx = Tensor::empty(x.shape(), dtype, x.device());
  Tensor dw = on(normal(w.shape(), 5, dtype)), db = on(normal({c.O}, 6, dtype));
  // Which side of 0 a sum falls on is not the same for every order: one y for both.
  Tensor kept = on(normal(y.shape(), 7, dtype));
  BRINE_CALL(x, conv2d_backward, dx, dw, db, dy, x, w, kept, conf);
  Tensor dx2 = Tensor::like(dx), dw2 = on(normal(w.shape(), 8, dtype));
  Tensor db2 = on(normal({c.O}, 9, dtype));
  BRINE_CALL(x, conv2d_backward, dx2, {}, {}, dy, x, w, kept, conf);
  BRINE_CALL(x, conv2d_backward, {}, dw2, {}, dy, x, w, kept, conf);
  BRINE_CALL(x, conv2d_backward, {}, {}, db2, dy, x, w, kept, conf);
  return {y, dx, dw, db, dx2, dw2, db2};
}

void try_case(const std::string& what, const ConvCase& c) {
  if (c.half != Dtype::f32) {
    compare(what, 2e-5, [&](const On& on) { return run(c, on, Dtype::f32); });
  } else {
    compare_both(what, [&](const On& on, Dtype dtype) { return run(c, on, dtype); });
  }
}

}  // namespace

TEST_CASE("cuda: convolution of padded sequences") {
  for (bool on_device : {false, true}) {
    ConvCase c;
    c.B = 5;
    c.rows_in = 16;
    c.lengths = {0, 14, 3, 99, 5};
    c.lengths_on_device = on_device;
    try_case("lengths", c);
    c.conf = {.stride = 2, .relu = true, .halo_before = 1, .halo_after = 2};
    try_case("lengths, stride, halos", c);
    c.conf.row_stride = 4;
    try_case("lengths, rows of four tokens", c);
    for (Dtype half : {Dtype::bf16, Dtype::f16}) {
      c.half = half;
      try_case(join("lengths, ", half), c);
    }
  }
}

TEST_CASE("cuda: convolution of more channels and rows") {
  try_case("many channels", {.B = 2, .rows_in = 11, .W = 7, .C = 33, .O = 70});
  try_case("many rows", {.B = 3, .rows_in = 130, .W = 9, .C = 2, .O = 3, .lengths = {130, 0, 77}});
  for (Dtype half : {Dtype::bf16, Dtype::f16}) {
    try_case(
        name_of(half),
        {.B = 2, .rows_in = 20, .W = 8, .C = 18, .O = 20, .conf = {.relu = true}, .half = half});
  }
}

// An image that has the margins of its columns, as decoding keeps it.
TEST_CASE("cuda: convolution of a window, with the same bits among any other sequences") {
  for (const Convolution& conf : {Convolution{.relu = true}, Convolution{}}) {
    compare_both(join("window, relu ", conf.relu), [&](const On& on, Dtype dtype) {
      const int64_t span = 2, W = 6;
      const Tensor windows = on(normal({5, span + 1, W + span, 3}, 1, dtype));
      const Tensor w = on(normal({4, 3, 3, 3}, 2, dtype)), b = on(normal({4}, 3, dtype));
      auto rows = [&](int64_t start, int64_t n) {
        Tensor y = Tensor::empty({n, 1, W, 4}, dtype, w.device());
        BRINE_CALL(w, conv2d, y, windows.slice(0, start, n), w, b, conf);
        return y;
      };
      const Tensor all = rows(0, 5);
      CHECK(same_bits(rows(2, 2).to(kCpu), all.slice(0, 2, 2).to(kCpu)));
      return std::vector{all};
    });
  }
}
