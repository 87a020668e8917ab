// Products of matrices and layers on the device, as on the CPU.
#include "tensor/cuda/core/blas.h"
#include "tensor/kernels/dense.h"
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

namespace {

// A copy to the device would lose the strides of a view, so inputs are copied whole and viewed
// afterwards by the same function.
using View = Tensor (*)(const Tensor&);

Tensor unchanged(const Tensor& x) { return x; }
Tensor flipped(const Tensor& x) { return x.transpose(-1, -2); }
// [.., M, N + 3] with columns 1 .. N + 1.
Tensor inner(const Tensor& x) { return x.slice(-1, 1, x.dim(-1) - 3); }
// [B, T, H, d] as [B, H, T, d].
Tensor heads(const Tensor& x) { return x.transpose(1, 2); }
Tensor heads_flipped(const Tensor& x) { return heads(x).transpose(-1, -2); }
// One matrix for all.
Tensor first(const Tensor& x) { return x.slice(0, 0, 1); }

struct MatmulCase {
  Shape y, a, b;
  View cut_y = unchanged, cut_a = unchanged, cut_b = unchanged;
  bool ta = false, tb = false;
  double alpha = 1, beta = 0;
};

void try_matmul(const MatmulCase& c, const std::string& what) {
  compare_both(what, [&](const On& on, Dtype dtype) {
    Tensor y = on(normal(c.y, 1, dtype)), a = on(normal(c.a, 2, dtype));
    Tensor b = on(normal(c.b, 3, dtype));
    BRINE_CALL(y, matmul, c.cut_y(y), c.cut_a(a), c.cut_b(b), c.ta, c.tb, c.alpha, c.beta);
    return std::vector{y};
  });
}

}  // namespace

TEST_CASE("cuda: matrix products of every transpose, size and scale") {
  for (bool ta : {false, true}) {
    for (bool tb : {false, true}) {
      for (auto [M, N, K] :
           {std::array{1, 1, 1}, {1, 7, 5}, {9, 1, 4}, {33, 17, 70}, {8, 64, 320}}) {
        const Shape a = ta ? Shape{K, M} : Shape{M, K}, b = tb ? Shape{N, K} : Shape{K, N};
        const std::string what =
            join("matmul ", M, " ", N, " ", K, ta ? " ta" : "", tb ? " tb" : "");
        try_matmul({.y = {M, N}, .a = a, .b = b, .ta = ta, .tb = tb}, what);
        try_matmul({.y = {M, N}, .a = a, .b = b, .ta = ta, .tb = tb, .alpha = -0.3, .beta = 0.7},
                   what + " scaled");
        // Views: the flags' opposites, and columns out of the middle.
        const Shape at{a[1], a[0]}, bt{b[1], b[0]};
        try_matmul({.y = {M, N + 3},
                    .a = at,
                    .b = bt,
                    .cut_y = inner,
                    .cut_a = flipped,
                    .cut_b = flipped,
                    .ta = ta,
                    .tb = tb,
                    .beta = 1},
                   what + " flipped views");
        try_matmul({.y = {M, N + 3},
                    .a = {a[0], a[1] + 3},
                    .b = {b[0], b[1] + 3},
                    .cut_y = inner,
                    .cut_a = inner,
                    .cut_b = inner,
                    .ta = ta,
                    .tb = tb},
                   what + " inner columns");
      }
    }
  }
}

TEST_CASE("cuda: batches of matrix products") {
  try_matmul({.y = {3, 5, 7}, .a = {3, 5, 4}, .b = {3, 4, 7}}, "batch");
  try_matmul({.y = {65537, 2, 1}, .a = {65537, 2, 2}, .b = {65537, 2, 1}},
             "more than a grid's axis");
  try_matmul({.y = {3, 5, 7}, .a = {3, 5, 4}, .b = {1, 4, 7}, .beta = 1}, "shared b");
  try_matmul({.y = {3, 5, 7}, .a = {3, 5, 4}, .b = {4, 7}}, "b of lower rank");
  try_matmul({.y = {3, 5, 7}, .a = {1, 5, 4}, .b = {3, 4, 7}}, "shared a");
  try_matmul({.y = {3, 5, 7}, .a = {1, 5, 4}, .b = {1, 4, 7}}, "both shared");
  try_matmul({.y = {4, 1, 7}, .a = {4, 1, 6}, .b = {1, 6, 7}}, "one row each");
  try_matmul({.y = {3, 5, 7}, .a = {3, 4, 5}, .b = {1, 7, 4}, .ta = true, .tb = true},
             "shared b, transposed");
  try_matmul({.y = {2, 3, 5, 7}, .a = {2, 1, 5, 4}, .b = {1, 3, 4, 7}}, "crossed sharing");
  try_matmul({.y = {2, 6, 3, 8},
              .a = {2, 6, 3, 5},
              .b = {2, 8, 3, 5},
              .cut_y = heads,
              .cut_a = heads,
              .cut_b = heads,
              .tb = true},
             "heads between the tokens");
  try_matmul({.y = {2, 3, 6, 8},
              .a = {2, 6, 3, 5},
              .b = {2, 8, 3, 5},
              .cut_a = heads,
              .cut_b = heads_flipped,
              .alpha = 0.5},
             "heads, scores in order");
  try_matmul({.y = {4, 3, 6, 8}, .a = {4, 3, 6, 5}, .b = {4, 3, 5, 8}, .cut_b = first},
             "b's first");
  try_matmul({.y = {0, 5, 7}, .a = {0, 5, 4}, .b = {0, 4, 7}}, "no matrices");
  try_matmul({.y = {2, 0, 7}, .a = {2, 0, 4}, .b = {2, 4, 7}}, "no rows");
  try_matmul({.y = {2, 5, 7}, .a = {2, 5, 0}, .b = {2, 0, 7}, .beta = 0.5}, "an empty sum");
  try_matmul({.y = {2, 5, 10}, .a = {2, 5, 0}, .b = {2, 0, 7}, .cut_y = inner},
             "an empty sum, cut");
}

TEST_CASE("cuda: products of bf16 and f16, also with each other and with f32") {
  const Dtype pairs[][2] = {{Dtype::bf16, Dtype::bf16},
                            {Dtype::bf16, Dtype::f32},
                            {Dtype::f16, Dtype::f16},
                            {Dtype::f32, Dtype::f16},
                            {Dtype::f16, Dtype::bf16}};
  for (auto [left, right] : pairs) {
    for (bool tb : {false, true}) {
      compare(join(left, " x ", right, tb ? " tb" : ""), 2e-5, [&](const On& on) {
        Tensor a = on(normal({2, 9, 21}, 2).to(left));
        Tensor b = on(normal(tb ? Shape{2, 13, 21} : Shape{2, 21, 13}, 3).to(right));
        Tensor y = on(normal({2, 9, 13}, 1));
        BRINE_CALL(y, matmul, y, a, b, false, tb, 0.5, 1);
        return std::vector{y};
      });
    }
  }
}

TEST_CASE("cuda: overlapping rows, and identical rows") {
  compare_both("overlapping", [&](const On& on, Dtype dtype) {
    Tensor x = on(normal({20}, 1, dtype)), b = on(normal({6, 5}, 2, dtype));
    Tensor y = Tensor::empty({8, 5}, dtype, x.device()), z = Tensor::like(y);
    BRINE_CALL(y, matmul, y, x.as_strided({8, 6}, {2, 1}), b, false, false, 1, 0);
    BRINE_CALL(y, matmul, z, x.as_strided({6, 8}, {1, 0}), b, true, false, 1, 0);
    return std::vector{y, z};
  });
}

TEST_CASE("cuda: linear layers in 16 bits") {
  for (Dtype half : {Dtype::bf16, Dtype::f16}) {
    compare(join("linear ", half), 2e-5, [&](const On& on) {
      Tensor x = on(normal({9, 21}, 1).to(half)), w = on(normal({7, 21}, 2).to(half));
      Tensor b = on(normal({7}, 3)), y = Tensor::empty({9, 7}, Dtype::f32, x.device());
      BRINE_CALL(x, linear, y, x, w, b);
      return std::vector{y};
    });
  }
}

TEST_CASE("cuda: TF32 only when it is requested, and only in f32") {
  if (!has_device()) return;
  for (Dtype dtype : {Dtype::f32, Dtype::f64}) {
    const Tensor a = normal({64, 48}, 1, dtype), b = normal({48, 40}, 2, dtype);
    Tensor wanted = Tensor::empty({64, 40}, dtype);
    BRINE_CALL(wanted, matmul, wanted, a, b, false, false, 1, 0);
    auto product = [&](bool tf32) {
      Tensor y = Tensor::empty({64, 40}, dtype, kCuda);
      cuda::set_tf32(tf32);
      cuda::matmul(y, a.to(kCuda), b.to(kCuda), false, false, 1, 0);
      cuda::set_tf32(false);
      return y.to(kCpu);
    };
    const Tensor before = product(false), fast = product(true), after = product(false);
    check_close("f32", wanted, before, 2e-6);
    check_close("tf32", wanted, fast, 2e-3);
    CHECK(same_bits(before, after));
    // A real library may find nothing faster than f32 for some sizes.
    if (cuda::emulated()) CHECK(same_bits(before, fast) == (dtype == Dtype::f64));
  }
}
