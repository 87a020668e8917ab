// Attention on caches, and the rows they take on the device, as on the CPU.
#include "tensor/kernels/attention.h"
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

TEST_CASE("cuda: append_row") {
  for (bool moved : {false, true}) {
    compare_both("append_row", [&](const On& on, Dtype dtype) {
      Tensor cache = on(normal({3, 2, 9, 37}, 1).to(stored(dtype, moved))),
             row = on(normal({3, 2, 1, 37}, 2, dtype));
      Tensor at = lengths_of({8, 0, 5});
      BRINE_CALL(cache, append_row, cache, row, moved ? on(at) : at);
      return std::vector{cache};
    });
  }
}

TEST_CASE("cuda: cached_attention over spans of keys, none of them, one and many") {
  for (int64_t d : {1, 5, 32, 64, 100}) {
    for (int64_t S : {1, 40, 256, 257, 700}) {
      compare_both(join("cached_attention ", S, " x ", d), [&](const On& on, Dtype dtype) {
        const int64_t B = 5, H = 6, G = S % 2 ? 2 : 6;
        Tensor q = on(normal({B, H, 1, d}, 1, dtype));
        const Dtype type = stored(dtype, S % 2 != 0);
        Tensor k = on(normal({B, G, S, d}, 2).to(type)), v = on(normal({B, G, S, d}, 3).to(type));
        Tensor first = lengths_of({0, S / 2, S, S - 1, S / 3}),
               last = lengths_of({S, S / 2, 0, S, S});
        Tensor y = Tensor::empty({B, H, d}, dtype, q.device());
        const double scale = 2 / std::sqrt(double(d));
        if (d % 2) {
          BRINE_CALL(q, cached_attention, y, q, k, v, on(first), on(last), scale);
        } else {
          BRINE_CALL(q, cached_attention, y, q, k, v, first, last, scale);
        }
        return std::vector{y};
      });
    }
  }
}

TEST_CASE(
    "cuda: cached_attention gives a sequence the same bits whatever the other sequences are") {
  if (!has_device()) return;
  const int64_t S = 600, d = 24;
  Tensor q = normal({2, 1, 1, d}, 1), k = normal({2, 1, S, d}, 2), v = normal({2, 1, S, d}, 3);
  auto attend = [&](int64_t from, int64_t n, int64_t room) {
    auto part = [&](const Tensor& x) {
      Tensor padded = Tensor::zeros({n, 1, room, d});
      for (int64_t b = 0; b < n; ++b) {
        const float* row = x.data<float>() + (from + b) * x.dim(2) * d;
        std::copy_n(row, std::min(room, x.dim(2)) * d, padded.data<float>() + b * room * d);
      }
      return padded.to(kCuda);
    };
    Tensor y = Tensor::empty({n, 1, d}, Dtype::f32, kCuda);
    Tensor query = q.slice(0, from, n).to(kCuda);
    const std::vector<int64_t> first{3, 290}, last{580, 600};
    auto of = [&](const std::vector<int64_t>& all) {
      return lengths_of({all.begin() + from, all.begin() + from + n});
    };
    BRINE_CALL(y, cached_attention, y, query, part(k), part(v), of(first), of(last), 0.2);
    return y.to(kCpu);
  };
  const Tensor both = attend(0, 2, S);
  for (int64_t b : {0, 1}) {
    for (int64_t room : {S, S + 900}) {
      check_close("cached_attention alone", both.slice(0, b, 1).contiguous(), attend(b, 1, room),
                  0);
    }
  }
}
