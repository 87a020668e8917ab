// Linear attention, its gradients and its state on the device, as on the CPU.
#include "autograd/ops.h"
#include "tensor/cuda/core/blas.h"
#include "tensor/kernels/estimator.h"
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

namespace {

struct AttentionSize {
  int64_t B, H, T, m, i, d;
  std::vector<int64_t> lengths;  // none: no padding
  bool table = true;             // identity [P, i], else [B, T, i]
  int64_t groups = 0;            // of heads that share keys and values; 0: one for every head

  int64_t G() const { return groups ? groups : H; }

  Tensor visible() const { return lengths.empty() ? Tensor() : Tensor::from(lengths, Shape{B}); }
  Shape identity() const { return table ? Shape{T + 3, i} : Shape{B, T, i}; }
};

const std::vector<AttentionSize> kAttentionSizes{{1, 1, 2, 3, 0, 1, {}},
                                                 {2, 2, 7, 5, 3, 4, {0, 6}},
                                                 {3, 1, 65, 9, 0, 6, {64, 65, 1}},
                                                 {2, 1, 150, 70, 7, 61, {150, 100}, false},
                                                 {1, 2, 200, 33, 66, 5, {}},
                                                 {1, 1, 330, 256, 2, 9, {300}},
                                                 {1, 1, 0, 4, 2, 3, {}},
                                                 {2, 6, 65, 9, 3, 6, {64, 65}, true, 2},
                                                 {1, 6, 150, 70, 0, 61, {}, true, 3},
                                                 {2, 3, 200, 130, 7, 5, {200, 1}, false, 1}};

// Numbers that f32 represents exactly, in both types.
struct Inputs {
  Tensor q, k, v, identity;

  Inputs(const AttentionSize& s, const On& on, Dtype dtype)
      : q(on(uniform({s.B, s.H, s.T, s.m}, 1, 0, 1).to(dtype))),
        k(on(uniform({s.B, s.G(), s.T, s.m}, 2, 0, 1).to(dtype))),
        v(on(normal({s.B, s.G(), s.T, s.d}, 3).to(dtype))),
        identity(s.i ? on(normal(s.identity(), 4).to(dtype)) : Tensor()) {}
};

// y, den and all gradients.
std::vector<Tensor> attend(const AttentionSize& s, bool causal, const On& on, Dtype dtype) {
  const Inputs in(s, on, dtype);
  Tensor y = Tensor::empty({s.B, s.H, s.T, s.i + s.d}, dtype, on.device);
  Tensor den = Tensor::empty({s.B, s.H, s.T}, dtype, on.device);
  const Visibility visible{causal, s.visible()};
  BRINE_CALL(y, linear_attention, y, den, in.q, in.k, in.identity, in.v, visible, 1e-3);
  Tensor dy = on(normal(y.shape(), 5).to(dtype));
  Tensor dq = Tensor::like(in.q), dk = Tensor::like(in.k), dv = Tensor::like(in.v);
  Tensor unasked = Tensor::like(in.v), didentity;
  if (s.i && s.table) didentity = on(normal(s.identity(), 6).to(dtype));
  BRINE_CALL(y, linear_attention_backward, dq, dk, didentity, dv, dy, y, den, in.q, in.k,
             in.identity, in.v, visible, 1e-3);
  BRINE_CALL(y, linear_attention_backward, dq, dk, Tensor(), unasked, dy, y, den, in.q, in.k,
             in.identity, in.v, visible, 1e-3);
  return {y, den, dq, dk, dv, unasked, didentity};
}

void compare_linear_attention(const AttentionSize& s, bool causal) {
  const auto what = join("linear_attention ", s.T, "x", s.m, "x", s.i + s.d, " ", causal);
  compare_both(what, [&](const On& on, Dtype dtype) { return attend(s, causal, on, dtype); });
}

// The largest distance from the numbers of f64, in units of the largest of them.
double error_of(const Tensor& x, const Tensor& exact) {
  return largest(sub(x.to(Dtype::f64), exact).to_vector()) / largest(exact.to_vector());
}

void compare_state(const AttentionSize& s) {
  if (!s.table) return;
  compare_both(join("linear_attention_state ", s.T), [&](const On& on, Dtype dtype) {
    const Inputs in(s, on, dtype);
    Tensor state = Tensor::empty({s.B, s.G(), s.m, s.i + s.d}, dtype, on.device);
    Tensor sums = Tensor::empty({s.B, s.G(), s.m}, Dtype::f64, on.device);
    BRINE_CALL(state, linear_attention_state, state, sums, in.k, in.identity, in.v,
               Visibility{true, on(s.visible())});
    return std::vector{state, sums};
  });
}

}  // namespace

TEST_CASE("cuda: linear attention and its gradients") {
  for (const AttentionSize& s : kAttentionSizes) {
    for (bool causal : {false, true}) compare_linear_attention(s, causal);
  }
}

TEST_CASE("cuda: linear attention of any number of features") {
  const AttentionSize one{1, 1, 257, 1, 0, 3, {}};  // whose gradient of q is 0 but for rounding
  compare_both("linear_attention of one feature", [&](const On& on, Dtype dtype) {
    const std::vector<Tensor> all = attend(one, true, on, dtype);
    return std::vector{all[0], all[1], all[4]};
  });
  for (const AttentionSize& s :
       {AttentionSize{1, 2, 150, 7, 2, 66, {149}}, AttentionSize{2, 1, 130, 77, 4, 64, {130, 67}},
        AttentionSize{1, 1, 200, 155, 0, 68, {}}, AttentionSize{1, 1, 67, 255, 3, 4, {}},
        AttentionSize{1, 3, 131, 256, 4, 8, {}, true, 1},
        AttentionSize{1, 3, 200, 12, 4, 76, {}, false, 1}}) {
    compare_linear_attention(s, true);
  }
}

TEST_CASE("cuda: linear attention is near that of f64, and the same where others round to TF32") {
  if (!has_device()) return;
  const AttentionSize s{2, 2, 200, 70, 7, 61, {200, 131}};
  for (bool causal : {false, true}) {
    const std::vector<Tensor> exact = attend(s, causal, On{kCpu}, Dtype::f64);
    const std::vector<Tensor> got = attend(s, causal, On{kCuda}, Dtype::f32);
    const AtEnd reset{[] { cuda::set_tf32(false); }};
    cuda::set_tf32(true);
    const std::vector<Tensor> rounding = attend(s, causal, On{kCuda}, Dtype::f32);
    for (size_t i = 0; i < exact.size(); ++i) {
      INFO("output ", i, ", causal ", causal);
      CHECK(error_of(got[i].to(kCpu), exact[i]) < 2e-6);
      CHECK(same_bits(got[i].to(kCpu), rounding[i].to(kCpu)));
    }
  }
}

TEST_CASE("cuda: long sums of linear attention are not too small") {
  if (!has_device()) return;
  const Shape shape{1, 1, 2100, 4};
  auto attend = [&](const On& on, Dtype dtype) {
    const Tensor q = on(uniform(shape, 1, 0, 1).to(dtype)),
                 k = on(uniform(shape, 2, 0, 1).to(dtype));
    const Tensor v = on(uniform(shape, 3, 1, 2).to(dtype));
    Tensor y = Tensor::like(v), den = Tensor::empty({1, 1, 2100}, dtype, on.device);
    BRINE_CALL(y, linear_attention, y, den, q, k, Tensor(), v, Visibility{.causal = false}, 1e-3);
    return y.to(kCpu).to_vector();
  };
  const std::vector<double> exact = attend(On{kCpu}, Dtype::f64);
  const std::vector<double> got = attend(On{kCuda}, Dtype::f32);
  double off = 0;
  for (size_t i = 0; i < exact.size(); ++i) off += got[i] / exact[i] - 1;
  off /= double(exact.size());
  MESSAGE("mean relative error " << off);
  CHECK(std::fabs(off) < 1e-6);
}

TEST_CASE("cuda: an infinity in linear attention does not become a number") {
  if (!has_device()) return;
  const Shape shape{1, 1, 70, 8};
  const Tensor q = uniform(shape, 1, 0.1, 1).to(kCuda), k = uniform(shape, 2, 0.1, 1).to(kCuda);
  Tensor values = normal(shape, 3);
  values.data<float>()[8 * 30 + 5] = INFINITY;
  const Tensor v = values.to(kCuda);
  Tensor y = Tensor::like(v), den = Tensor::empty({1, 1, 70}, Dtype::f32, kCuda);
  BRINE_CALL(y, linear_attention, y, den, q, k, Tensor(), v, Visibility{.causal = false}, 1e-3);
  const std::vector<double> out = y.to(kCpu).to_vector();
  for (size_t i = 0; i < out.size(); ++i) CHECK(std::isfinite(out[i]) == (i % 8 != 5));
}

TEST_CASE("cuda: the state of linear attention") {
  for (const AttentionSize& s : kAttentionSizes) compare_state(s);
}

TEST_CASE("cuda: linear attention in batches of heads, with little memory") {
  const AttentionSize s{2, 3, 290, 20, 5, 10, {290, 211}};
  AttentionSize grouped = s;
  grouped.H = 6, grouped.groups = 3;
  // The states of one head in f64: 5 chunks of 20 x 15 numbers.
  for (int64_t bytes : {2 * 5 * 20 * 15 * 8, 2 * 20 * 15 * 8, 1}) {
    const ScratchLimit small(bytes);
    for (bool causal : {false, true}) compare_linear_attention(s, causal);
    compare_state(s);
    if (bytes == 1) continue;
    for (bool causal : {false, true}) compare_linear_attention(grouped, causal);
  }
}
