// Attention in 16 bits by cuDNN against the CPU; on an emulated device slow sums replace it.
// Without cuDNN Brine's kernels are compared with the same numbers.
#include "tensor/cuda/attention/cudnn.h"
#include "tests/cuda/attention/flash.h"

using namespace brine;
using namespace brine::test;

namespace {

// Turns cuDNN on or off while an object lives, if there is one.
struct Cudnn {
  int64_t before = cuda::cudnn_calls();
  explicit Cudnn(bool on) { cuda::set_cudnn(on); }
  ~Cudnn() { cuda::set_cudnn(!cuda::emulated()); }
  int64_t calls() const { return cuda::cudnn_calls() - before; }
};

struct Attention {
  Shape shape;
  bool causal = false;
  std::vector<int64_t> lengths = {};
  Dtype type = Dtype::bf16;
  int64_t group = 1;  // heads of queries for each head of keys and values
};

// The outputs of attention and its gradients, of inputs rounded to 16 bits; on the CPU, the exact
// ones, which the CPU's kernels for 16 bits would round further.
std::vector<Tensor> attend(const Attention& a, const On& on) {
  const int64_t B = a.shape[0], H = a.shape[1], T = a.shape[2], d = a.shape[3];
  const Visibility visible{a.causal, lengths_of(a.lengths)};
  const double scale = 1 / std::sqrt(double(d) + 0.5);
  const Shape keys{B, H / a.group, T, d};
  auto rounded = [&](const Shape& shape, uint64_t seed) {
    const Tensor x = normal(shape, seed).to(a.type);
    return on(on.device.is_cuda() ? x : x.to(Dtype::f32));
  };
  Tensor q = rounded(a.shape, 1), k = rounded(keys, 2), v = rounded(keys, 3),
         dy = on(normal({B, T, H * d}, 4));
  return flash_both_ways(q, k, v, dy, visible, scale);
}

void compare_fused_attention(const Attention& a, bool served = true) {
  const std::string what =
      join("attention in ", a.type, " ", a.shape, a.causal ? " causal" : "",
           a.lengths.empty() ? "" : " padded", a.group > 1 ? " of groups" : "");
  {
    const Cudnn off(false);
    // On tensor cores shares and gradients are rounded to TF32.
    compare(what + " on tensor cores", 1e-3, [&](const On& on) { return attend(a, on); });
    cuda::set_tensor_cores(false);
    compare(what, 2e-5, [&](const On& on) { return attend(a, on); });
    cuda::set_tensor_cores(true);
    CHECK(off.calls() == 0);
  }
  const Cudnn cudnn(true);
  // Its result has 8 bits, and so have the shares that it multiplies.
  compare(what + " by cuDNN", 1e-2, [&](const On& on) { return attend(a, on); });
  if (has_device() && cuda::cudnn_serves()) CHECK_MESSAGE(cudnn.calls() == int64_t(served), what);
}

}  // namespace

TEST_CASE("cuda: attention in 16 bits, with cuDNN and without") {
  for (bool causal : {false, true}) {
    compare_fused_attention({{2, 3, 70, 64}, causal});
    compare_fused_attention({{1, 2, 37, 128}, causal});
    compare_fused_attention(
        {.shape = {2, 6, 70, 64}, .causal = causal, .lengths = {70, 31}, .group = 3});
    compare_fused_attention({{4, 2, 66, 32}, causal, {66, 0, 1, 40}});
  }
}

TEST_CASE("cuda: attention that cuDNN has no kernels for is our own") {
  compare_fused_attention({{1, 2, 20, 20}, true}, false);
  compare_fused_attention({{1, 1, 20, 136}, false, {11}}, false);
}
