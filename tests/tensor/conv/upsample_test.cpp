// Upsampling against naive f64 loops.
#include "tensor/kernels/conv.h"
#include "tests/gradcheck.h"

using namespace brine;
using brine::test::normal;

TEST_CASE("upsample repeats the nearest row and column, and its gradient adds up") {
  for (Dtype dtype : {Dtype::f32, Dtype::f64}) {
    for (int64_t stride : {1, 2, 3}) {
      for (int64_t K : {5, 10, 13}) {
        const int64_t B = 2, T = 11, R = (T + stride - 1) / stride, W = 5, C = 3;
        Upsampling conf{.tokens = T,
                        .columns = K,
                        .stride = stride,
                        .halo_before = 2,
                        .halo_after = 1,
                        .lengths = Tensor::from(std::vector<int64_t>{11, 4}, {2})};
        Tensor x = normal({B, R, W, C}, 1, dtype), y = Tensor::empty({B, T + 3, K, C}, dtype);
        Tensor dy = normal(y.shape(), 2, dtype);
        std::vector<double> in = x.to_vector(), g = dy.to_vector();
        std::vector<double> out(size_t(y.numel())), back(in.size());
        for (int64_t b = 0; b < B; ++b)
          for (int64_t t = 0; t < (b ? 4 : T); ++t)
            for (int64_t c = 0; c < K; ++c)
              for (int64_t i = 0; i < C; ++i) {
                size_t to = size_t(((b * (T + 3) + 2 + t) * K + c) * C + i);
                size_t from = size_t(((b * R + t / stride) * W + c * W / K) * C + i);
                out[to] = in[from];
                back[from] += g[to];
              }
        cpu::upsample(y, x, conf);
        CHECK(y.to_vector() == out);
        Tensor dx = Tensor::like(x);
        cpu::upsample_backward(dx, dy, conf);
        CHECK(test::close(dx.to_vector(), back, 1e-5, 1e-6));
      }
    }
  }
}
