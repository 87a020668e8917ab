// Softmax attention by tiles on the device, as on the CPU.
#include "tests/cuda/attention/flash.h"

using namespace brine;
using namespace brine::test;

namespace {

// Forward and backward of one size; bit i of `wanted` asks for the gradient of q, k or v. `group`
// heads share keys and values.
void compare_flash(const Shape& shape, std::vector<int64_t> lengths, bool causal, int wanted = 7,
                   int64_t group = 1) {
  const int64_t B = shape[0], H = shape[1], T = shape[2], d = shape[3];
  const Shape rows{B, T, H * d}, keys{B, H / group, T, d};
  const double scale = 1 / std::sqrt(double(d) + 0.5);
  const std::string what =
      join("flash_attention ", shape, causal ? " causal" : "", lengths.empty() ? "" : " padded",
           ", gradients ", wanted, ", heads of a group ", group);
  auto attend = [&](const On& on, Dtype dtype) {
    // The lengths are with the tensors, or on the CPU.
    Visibility visible{causal, lengths_of(lengths)};
    if (wanted & 1) visible.lengths = on(visible.lengths);
    Tensor q = on(normal(shape, 1, dtype)), k = on(normal(keys, 2, dtype));
    Tensor v = on(normal(keys, 3, dtype)), dy = on(normal(rows, 4, dtype));
    return flash_both_ways(q, k, v, dy, visible, scale, wanted);
  };
  compare_both(what, attend, {}, Emulated::large_device);
  // Wider heads have lower tiles, or none, if shared memory is small: 64 KB, 99 KB in f64.
  if (d > 32) compare_both(what + ", small", attend);
  if (d > 64) {
    compare(what + ", f32, middle", 2e-5, [&](const On& on) {
      const SmallDevice middle(Dtype::f64);
      return attend(on, Dtype::f32);
    });
  }
}

}  // namespace

TEST_CASE("cuda: flash_attention and its gradients, heads of any size") {
  for (int64_t d : {1, 6, 32, 33, 64, 80, 128, 130}) {
    for (bool causal : {false, true}) compare_flash({1, 2, d > 64 ? 37 : 70, d}, {}, causal);
  }
}

TEST_CASE("cuda: flash_attention of one row, of whole tiles and of one more") {
  for (int64_t T : {1, 3, 64, 65, 129, 200}) {
    // A single key has weight 1, so the gradients of its score are nothing but rounding.
    for (bool causal : {false, true}) compare_flash({2, 1, T, 20}, {}, causal, T > 1 ? 7 : 4);
  }
}

TEST_CASE("cuda: flash_attention of padded and empty sequences") {
  for (bool causal : {false, true}) {
    compare_flash({4, 2, 140, 16}, {140, 0, 1, 77}, causal);
    compare_flash({3, 1, 70, 64}, {64, 0, 65}, causal);
    compare_flash({3, 2, 40, 150}, {40, 0, 33}, causal);
  }
}

TEST_CASE("cuda: flash_attention of heads that share keys and values") {
  for (bool causal : {false, true}) {
    compare_flash({2, 6, 70, 16}, {70, 31}, causal, 7, 3);
    compare_flash({1, 2, 37, 130}, {}, causal, 7, 2);
  }
}

TEST_CASE("cuda: flash_attention_backward gives the gradients that are wanted") {
  for (int wanted = 0; wanted < 7; ++wanted) {
    compare_flash({2, 2, 70, 12}, {70, 31}, true, wanted);
    compare_flash({2, 1, 20, 132}, {20, 11}, false, wanted);
  }
}

TEST_CASE("cuda: flash_attention keeps large scores finite and rows of packets apart from others") {
  compare_both("flash_attention of large scores",
               [&](const On& on, Dtype dtype) {
                 const Shape shape{1, 1, 90, 8};
                 Visibility visible;
                 visible.causal = true;
                 // A start in the middle of a packet.
                 Tensor all = on(normal({90 * 8 + 1}, 1, dtype, 0, 6));
                 Tensor q = all.as_strided(shape, {90 * 8, 90 * 8, 8, 1}, 1);
                 Tensor k = on(normal(shape, 2, dtype, 0, 6)), v = on(normal(shape, 3, dtype));
                 Tensor y = Tensor::empty({1, 90, 8}, dtype, q.device());
                 Tensor lse = Tensor::empty({1, 1, 90}, dtype, q.device());
                 BRINE_CALL(q, flash_attention, y, lse, q, k, v, visible, 1.0);
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
  for (bool causal : {false, true}) {
    const Visibility visible{causal, lengths_of({66})};
    for (const Tensor& t : flash_both_ways(x, x, x, rows, visible, 0.3)) {
      const std::vector<double> values = t.to(kCpu).to_vector();
      for (double value : values) REQUIRE(std::isfinite(value));
    }
  }
}

TEST_CASE("cuda: flash_attention of 16 bits without cuDNN is exact in its scores on tensor cores") {
  if (!has_device()) return;
  cuda::set_cudnn(false);
  for (Dtype type : {Dtype::bf16, Dtype::f16}) {
    for (auto [d, T] : {std::pair{6, 70}, {64, 129}, {128, 66}}) {
      const Shape shape{1, 2, T, d}, rows{1, T, 2 * d};
      auto run = [&](Device device) {
        const On on{device};
        const Visibility visible{true, {}};
        // On the CPU the exact results, which the CPU's kernels for 16 bits would round.
        auto rounded = [&](const Tensor& x) {
          const Tensor y = x.to(type);
          return on(device.is_cuda() ? y : y.to(Dtype::f32));
        };
        const Tensor q = rounded(normal(shape, 1)), k = rounded(normal(shape, 2));
        // Values with much in common: the gradient of a score is a small difference.
        const Tensor v = rounded(normal(shape, 3, Dtype::f32, 3)), dy = on(normal(rows, 4));
        return flash_both_ways(q, k, v, dy, visible, 0.2);
      };
      const std::vector<Tensor> wanted = run(kCpu), got = run(kCuda);
      for (size_t i = 0; i < wanted.size(); ++i) {
        INFO(type, ", d ", d, ", T ", T, ", output ", i);
        check_close("16 bits", wanted[i], got[i].to(kCpu), i == 1 ? 1e-5 : 1e-3);
      }
    }
  }
  cuda::set_cudnn(!cuda::emulated());
}

// Tensor cores truncate sums: those of the weights of 1,000 keys would be too small by 1.4e-7.
TEST_CASE("cuda: long sums of flash_attention on tensor cores are not too small") {
  if (!has_device()) return;
  constexpr int64_t T = 1000;
  cuda::set_tf32(true);
  const AtEnd reset{[] { cuda::set_tf32(false); }};
  const Tensor q = normal({1, 1, T, 8}, 1).to(kCuda), k = normal({1, 1, T, 8}, 2).to(kCuda);
  const Tensor v = Tensor::full({1, 1, T, 8}, 1, Dtype::f32, kCuda);
  Tensor y = Tensor::empty({1, T, 8}, Dtype::f32, kCuda);
  Tensor lse = Tensor::empty({1, 1, T}, Dtype::f32, kCuda);
  BRINE_CALL(q, flash_attention, y, lse, q, k, v, Visibility{.causal = false}, 0.3);
  double off = 0;
  for (const double x : y.to(kCpu).to_vector()) off += x - 1;
  off /= double(y.numel());
  MESSAGE("mean error " << off);
  CHECK(std::fabs(off) < 6e-8);
}

TEST_CASE("cuda: flash_attention on tensor cores, when TF32 is requested") {
  if (!has_device()) return;
  // Numbers that TF32 represents exactly: the scores are then those of f32, and only values derived
  // from them are rounded, by at most 2^-11 of themselves.
  auto short_normal = [](const Shape& shape, uint64_t seed) {
    Tensor x = normal(shape, seed);
    for (int64_t i = 0; i < x.numel(); ++i) {
      x.data<float>()[i] = float(bf16(x.data<float>()[i]));
    }
    return x;
  };
  for (auto [d, T] : {std::pair{6, 70}, {32, 129}, {64, 64}, {80, 40}, {128, 66}}) {
    for (bool causal : {false, true}) {
      const Shape shape{2, 2, T, d}, rows{2, T, 2 * d};
      auto run = [&](Device device) {
        const On on{device};
        const Visibility visible{causal, lengths_of({T, T - 7})};
        const Tensor q = on(short_normal(shape, 1)), k = on(short_normal(shape, 2));
        const Tensor v = on(short_normal(shape, 3)), dy = on(short_normal(rows, 4));
        return flash_both_ways(q, k, v, dy, visible, 0.2);
      };
      const std::vector<Tensor> wanted = run(kCpu), plain = run(kCuda);
      cuda::set_tf32(true);
      const std::vector<Tensor> fast = run(kCuda), again = run(kCuda);
      cuda::set_tf32(false);
      for (size_t i = 0; i < wanted.size(); ++i) {
        INFO("d ", d, ", T ", T, causal ? ", causal" : "", ", output ", i);
        const bool of_scores = i == 1;
        check_close("tensor cores", wanted[i], fast[i].to(kCpu), of_scores ? 1e-5 : 1e-3);
        CHECK(same_bits(fast[i].to(kCpu), again[i].to(kCpu)));
        // Old devices have none.
        if (cuda::emulated() && !of_scores) {
          CHECK_FALSE(same_bits(fast[i].to(kCpu), plain[i].to(kCpu)));
        }
      }
    }
  }
}
