// Softmax attention by tiles on the device, as on the CPU.
#include "tensor/kernels_attention.h"

#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

namespace {

// Forward and backward of one size; bit i of `wanted` asks for the gradient of q, k or v.
void compare_attention(const Shape& shape, std::vector<int64_t> lengths, bool causal,
                       int wanted = 7) {
  const int64_t B = shape[0], H = shape[1], T = shape[2], d = shape[3];
  const Shape rows{B, T, H * d};
  const double scale = 1 / std::sqrt(double(d) + 0.5);
  const std::string what = join("flash_attention ", shape, causal ? " causal" : "",
                                lengths.empty() ? "" : " padded", ", gradients ", wanted);
  auto attend = [&](const On& on, Dtype dtype) {
    Visibility see;
    see.causal = causal;
    // The lengths lie with the tensors, or on the CPU.
    if (!lengths.empty()) {
      see.lengths = Tensor::from(lengths, Shape{B});
      if (wanted & 1) see.lengths = on(see.lengths);
    }
    Tensor q = on(normal(shape, 1, dtype)), k = on(normal(shape, 2, dtype));
    Tensor v = on(normal(shape, 3, dtype)), dy = on(normal(rows, 4, dtype));
    Tensor y = Tensor::like(dy), lse = Tensor::empty({B, H, T}, dtype, q.device());
    BRINE_CALL(q, flash_attention, y, lse, q, k, v, see, scale);
    Tensor dq = wanted & 1 ? Tensor::like(q) : Tensor();
    Tensor dk = wanted & 2 ? Tensor::like(q) : Tensor();
    Tensor dv = wanted & 4 ? Tensor::like(q) : Tensor();
    BRINE_CALL(q, flash_attention_backward, dq, dk, dv, dy, q, k, v, y, lse, see, scale);
    return std::vector{y, lse, dq, dk, dv};
  };
  compare_both(what, attend, {}, Emulated::large_device);
  // Wider heads have no tiles where shared memory is small.
  if (d > 32) compare_both(what + ", small", attend);
}

}  // namespace

TEST_CASE("cuda: flash_attention and its gradients, heads of any size") {
  for (int64_t d : {1, 6, 32, 33, 64, 80, 128, 130}) {
    for (bool causal : {false, true}) compare_attention({1, 2, d > 64 ? 37 : 70, d}, {}, causal);
  }
}

TEST_CASE("cuda: flash_attention of one row, of whole tiles and of one more") {
  for (int64_t T : {1, 3, 64, 65, 129, 200}) {
    // A single key has weight 1, so the gradients of its score are nothing but rounding.
    for (bool causal : {false, true}) compare_attention({2, 1, T, 20}, {}, causal, T > 1 ? 7 : 4);
  }
}

TEST_CASE("cuda: flash_attention of padded and empty sequences") {
  for (bool causal : {false, true}) {
    compare_attention({4, 2, 140, 16}, {140, 0, 1, 77}, causal);
    compare_attention({3, 1, 70, 64}, {64, 0, 65}, causal);
    compare_attention({3, 2, 40, 150}, {40, 0, 33}, causal);
  }
}

TEST_CASE("cuda: flash_attention_backward gives the gradients that are wanted") {
  for (int wanted = 0; wanted < 7; ++wanted) {
    compare_attention({2, 2, 70, 12}, {70, 31}, true, wanted);
    compare_attention({2, 1, 20, 132}, {20, 11}, false, wanted);
  }
}

TEST_CASE("cuda: flash_attention keeps large scores finite and rows of packets apart from others") {
  compare_both("flash_attention of large scores",
               [&](const On& on, Dtype dtype) {
                 const Shape shape{1, 1, 90, 8};
                 Visibility see;
                 see.causal = true;
                 // A start in the middle of a packet.
                 Tensor all = on(normal({90 * 8 + 1}, 1, dtype, 0, 6));
                 Tensor q = all.as_strided(shape, {90 * 8, 90 * 8, 8, 1}, 1);
                 Tensor k = on(normal(shape, 2, dtype, 0, 6)), v = on(normal(shape, 3, dtype));
                 Tensor y = Tensor::empty({1, 90, 8}, dtype, q.device());
                 Tensor lse = Tensor::empty({1, 1, 90}, dtype, q.device());
                 BRINE_CALL(q, flash_attention, y, lse, q, k, v, see, 1.0);
                 return std::vector{y, lse};
               },
               {.f32 = 1e-4});
}

TEST_CASE("cuda: flash_attention does not read the rows of padding") {
  if (!has_device()) return;
  const Shape shape{1, 1, 80, 8};
  Tensor dirty = normal(shape, 1);
  for (int64_t i = 66 * 8; i < 80 * 8; ++i) dirty.data<float>()[i] = NAN;
  Tensor x = dirty.to(kCuda), rows = dirty.view({1, 80, 8}).to(kCuda);
  Visibility see;
  see.lengths = Tensor::from(std::vector<int64_t>{66}, Shape{1});
  for (bool causal : {false, true}) {
    see.causal = causal;
    Tensor y = Tensor::like(rows), lse = Tensor::empty({1, 1, 80}, Dtype::f32, kCuda);
    Tensor dq = Tensor::like(x), dk = Tensor::like(x), dv = Tensor::like(x);
    BRINE_CALL(x, flash_attention, y, lse, x, x, x, see, 0.3);
    BRINE_CALL(x, flash_attention_backward, dq, dk, dv, rows, x, x, x, y, lse, see, 0.3);
    for (const Tensor& t : {y, lse, dq, dk, dv}) {
      const std::vector<double> values = t.to(kCpu).to_vector();
      for (double value : values) REQUIRE(std::isfinite(value));
    }
  }
}
