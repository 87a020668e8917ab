// Convolutions and attention in 16 bits by cuDNN against the CPU; on an emulated device slow sums
// replace it. Without cuDNN Brine's kernels are compared with the same numbers.
#include "tensor/cuda/conv/cudnn.h"
#include "tensor/kernels/attention.h"
#include "tensor/kernels/conv.h"
#include "tests/cuda/compare.h"

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
  Visibility visible;
  visible.causal = a.causal;
  if (!a.lengths.empty()) visible.lengths = Tensor::from(a.lengths, Shape{B});
  const double scale = 1 / std::sqrt(double(d) + 0.5);
  const Shape keys{B, H / a.group, T, d};
  auto rounded = [&](const Shape& shape, uint64_t seed) {
    const Tensor x = normal(shape, seed).to(a.type);
    return on(on.device.is_cuda() ? x : x.to(Dtype::f32));
  };
  Tensor q = rounded(a.shape, 1), k = rounded(keys, 2), v = rounded(keys, 3),
         dy = on(normal({B, T, H * d}, 4));
  Tensor y = Tensor::like(dy), lse = Tensor::empty({B, H, T}, Dtype::f32, q.device());
  BRINE_CALL(q, flash_attention, y, lse, q, k, v, visible, scale);
  Tensor dq = Tensor::empty(a.shape, Dtype::f32, q.device());
  Tensor dk = Tensor::like(dq), dv = Tensor::like(dq);
  BRINE_CALL(q, flash_attention_backward, dq, dk, dv, dy, q, k, v, y, lse, visible, scale);
  return {y, lse, dq, dk, dv};
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

struct Conv {
  int64_t B = 2, rows_in = 9, W = 5, C = 3, O = 4, kT = 3, kW = 3;
  bool bias = true;
  Convolution conf = {};
  std::vector<int64_t> lengths = {};
  Dtype type = Dtype::bf16;
};

std::vector<Tensor> convolve(const Conv& c, const On& on) {
  Convolution conf = c.conf;
  if (!c.lengths.empty()) conf.lengths = Tensor::from(c.lengths, {c.B});
  const int64_t rows = conf.halo_before + convolved_rows(c.rows_in, c.kT, conf) + conf.halo_after;
  Tensor x = on(normal({c.B, c.rows_in, c.W, c.C}, 1).to(c.type));
  Tensor w = on(normal({c.O, c.C, c.kT, c.kW}, 2).to(c.type));
  Tensor b = c.bias ? on(normal({c.O}, 3)) : Tensor();
  Tensor y = Tensor::empty({c.B, rows, c.W, c.O}, Dtype::f32, x.device());
  BRINE_CALL(x, conv2d, y, x, w, b, conf);
  // A gradient that 16 bits represent exactly, so that rounding does not change it.
  Tensor dy = on(normal(y.shape(), 4).to(c.type).to(Dtype::f32));
  Tensor kept = on(normal(y.shape(), 7)), dx = Tensor::empty(x.shape(), Dtype::f32, x.device());
  Tensor dw = on(normal(w.shape(), 5)), db = on(normal({c.O}, 6));
  BRINE_CALL(x, conv2d_backward, dx, dw, db, dy, x, w, kept, conf);
  return {y, dx, dw, db};
}

void compare_conv(const std::string& what, Conv c, int64_t served = 3) {
  {
    const Cudnn off(false);
    compare(what, 2e-5, [&](const On& on) { return convolve(c, on); });
    CHECK(off.calls() == 0);
  }
  const Cudnn cudnn(true);
  compare(what + " by cuDNN", 2e-5, [&](const On& on) { return convolve(c, on); });
  // A real library may refuse more.
  if (has_device() && cuda::emulated()) CHECK_MESSAGE(cudnn.calls() == served, what);
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

TEST_CASE("cuda: convolution in bf16, with cuDNN and without") {
  compare_conv("plain", {});
  compare_conv("one by one, no bias", {.kT = 1, .kW = 1, .bias = false});
  compare_conv("relu without bias", {.bias = false, .conf = {.relu = true}});
  compare_conv(
      "stride and dilation",
      {.rows_in = 15, .W = 9, .C = 8, .O = 16, .conf = {.dilation = 2, .stride = 2, .relu = true}});
  // Rows before the result would move it off cuDNN's alignment unless a row has 16 bytes.
  compare_conv("halos", {.conf = {.relu = true, .halo_before = 2, .halo_after = 3}});
  compare_conv("halos off its alignment",
               {.W = 5, .O = 3, .conf = {.halo_before = 1, .halo_after = 1}}, 2);
}

TEST_CASE("cuda: convolution of padded sequences in bf16, with cuDNN and without") {
  Conv c{.B = 5, .rows_in = 16, .conf = {.stride = 2, .relu = true, .halo_before = 1}};
  c.lengths = {0, 14, 3, 99, 5};
  compare_conv("lengths", c);
  c.conf.row_stride = 4;
  c.conf.halo_after = 2;
  compare_conv("lengths, rows of four tokens", c);
}

TEST_CASE("cuda: an empty convolution never reaches cuDNN") {
  compare_conv("no sequences", {.B = 0}, 0);
}
