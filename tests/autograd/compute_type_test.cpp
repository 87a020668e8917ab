// bf16 and f16 compute: the results are those of f64 for the same rounded inputs.
#include "autograd/compute_type.h"

#include "autograd/ops.h"
#include "autograd/ops_conv.h"
#include "autograd/ops_estimator.h"
#include "tensor/kernels/dense.h"
#include "tests/gradcheck.h"

namespace brine::test {
namespace {

constexpr Dtype kHalves[] = {Dtype::bf16, Dtype::f16};

// Of two sequences of 37 rows: padded, and causal.
const Visibility kSeen[] = {{false, Tensor::from(std::vector<int64_t>{37, 20}, {2})}, {true, {}}};

Tensor rounded(const Tensor& x, Dtype half) { return x.to(half).to(Dtype::f64); }

// f of f32 inputs under `half` against f of already rounded inputs, in f64: results, then gradients
// for a cotangent that rounding does not change. Gradients of the last `whole` inputs (biases) are
// sums of the unrounded cotangent.
template <class F>
void check_rounding(Dtype half, const F& f, const std::vector<Tensor>& inputs, const Shape& shape,
                    double tolerance = 2e-6) {
  INFO(half);
  const Tensor dy = rounded(normal(shape, 99), half).to(Dtype::f32);
  Run got;
  {
    const ComputeType compute(half);
    got = run(f, inputs, dy);
  }
  std::vector<Tensor> exact;
  for (const Tensor& x : inputs)
    exact.push_back(x.rank() == 1 ? x.to(Dtype::f64) : rounded(x, half));
  const Run wanted = run(f, exact, dy.to(Dtype::f64));
  CHECK(close_to_scale(got.y, wanted.y.to(Dtype::f32), tolerance));
  for (size_t i = 0; i < inputs.size(); ++i) {
    INFO("gradient of input " << i);
    CHECK(got.grads[i].dtype() == Dtype::f32);
    CHECK(close_to_scale(got.grads[i], wanted.grads[i].to(Dtype::f32), tolerance));
  }
  // And it did round: f32 gives something else.
  Run plain = run(f, inputs, dy);
  got.grads.push_back(got.y);
  plain.grads.push_back(plain.y);
  double off = 0;
  for (size_t n = 0; n < got.grads.size(); ++n) {
    off = std::max(off, largest(sub(got.grads[n], plain.grads[n]).to_vector()) /
                            largest(plain.grads[n].to_vector()));
  }
  CHECK(off > (half == Dtype::bf16 ? 1e-3 : 1e-4));
}

}  // namespace

TEST_CASE("half compute: linear multiplies rounded inputs and adds in f32, forward and backward") {
  for (Dtype half : kHalves) {
    for (const Shape& s : {Shape{64, 48, 40}, Shape{33, 7, 5}, Shape{300, 129, 65}}) {
      INFO(s);
      check_rounding(half, [](In x) { return linear(x[0], x[1], x[2]); },
                     {normal({s[0], s[1]}, 1), normal({s[2], s[1]}, 2), normal({s[2]}, 3)},
                     {s[0], s[2]});
    }
    check_rounding(half, [](In x) { return linear_in_out(x[0], x[1], x[2]); },
                   {normal({64, 48}, 1), normal({48, 40}, 2), normal({40}, 3)}, {64, 40});
    check_rounding(half, [](In x) { return linear(x[0], x[1], {}); },
                   {normal({3, 5, 4, 16}, 1), normal({8, 16}, 2)}, {3, 5, 4, 8});
  }
}

TEST_CASE("half compute: a gradient is rounded as it comes, so one scaled into f16 is kept") {
  const ComputeType compute(Dtype::f16);
  const std::vector<Tensor> inputs = {normal({40, 8}, 1), normal({6, 8}, 2), normal({6}, 3)};
  auto f = [](In x) { return linear(x[0], x[1], x[2]); };
  const double small = 0x1p-30;  // 64 times below the largest f16
  auto gradients = [&](double scale) {
    Tensor dy = normal({40, 6}, 4);
    BRINE_CALL(dy, axpby, dy, dy, 0.0, small * scale);
    return run(f, inputs, dy).grads;
  };
  const std::vector<Tensor> lost = gradients(1), kept = gradients(0x1p30);
  for (size_t i : {0, 1}) {
    CHECK(largest(lost[i].to_vector()) == 0);
    CHECK(largest(kept[i].to_vector()) > 0.1);
  }
  CHECK(largest(lost[2].to_vector()) > small);  // a sum, never rounded
  CHECK_FALSE(std::isfinite(largest(gradients(0x1p60)[0].to_vector())));
}

TEST_CASE("half compute: conv2d, with every kind of border, multiplies rounded inputs") {
  struct Case {
    int64_t in, out, kernel;
    Convolution conf;
  };
  const std::vector<Case> cases = {{24, 24, 3, {.relu = true}},
                                   {16, 16, 3, {.halo_before = 4}},
                                   {5, 3, 3, {.relu = true, .halo_before = 2}},
                                   {8, 12, 1, {}},
                                   {6, 7, 3, {.stride = 2}}};
  for (const Case& c : cases) {
    INFO(c.in << " -> " << c.out << " kernel " << c.kernel);
    const int64_t rows = convolved_rows(70, c.kernel, c.conf);
    auto f = [&](In x) { return conv2d(x[0], x[1], x[2], c.conf); };
    // ReLU's border may fall either way under rounding: away from 0 by the bias.
    const Tensor bias = c.conf.relu ? normal({c.out}, 3, Dtype::f32, 40) : normal({c.out}, 3);
    for (Dtype half : kHalves) {
      check_rounding(
          half, f,
          {normal({2, 70, 9, c.in}, 1), normal({c.out, c.in, c.kernel, c.kernel}, 2), bias},
          {2, c.conf.halo_before + rows, 9, c.out});
    }
  }
}

TEST_CASE("half compute: the scores of prob_loss are those of rounded inputs") {
  const Shape shape{2, 3, 37, 16};
  for (const Visibility& visible : kSeen) {
    for (Dtype half : kHalves) {
      // The teacher is in 16 bits already, and as it is in f64.
      const Tensor theirs = normal(shape, 3).to(half), keys = normal(shape, 4).to(half);
      auto f = [&](In x) {
        const Dtype sums = x[0].dtype();
        const Dtype type = sums == Dtype::f64 ? sums : half;
        return prob_loss(x[0], x[1], {{}, theirs.to(type), keys.to(type)}, visible);
      };
      check_rounding(half, f, {normal(shape, 1), normal(shape, 2)}, {2});
    }
  }
}

// Where a CPU multiplies pairs of bf16, probabilities and the gradients of scores are rounded, too.
TEST_CASE("half compute: flash_attention rounds queries, keys and values, padded or not") {
  const Shape shape{2, 3, 37, 16};
  for (const Visibility& visible : kSeen) {
    for (Dtype half : kHalves) {
      check_rounding(
          half, [&](In x) { return flash_attention(x[0], x[1], x[2], visible); },
          {normal(shape, 1), normal(shape, 2), normal(shape, 3)}, {2, 37, 48},
          half == Dtype::bf16 ? 6e-3 : 2e-6);
    }
  }
}

TEST_CASE("half compute: few rows, f64 and everything outside of the scope stay as they are") {
  const Tensor x = normal({8, 24}, 1), w = normal({6, 24}, 2);
  const Tensor before = linear(x, w, {});
  const Tensor exact = linear(x.to(Dtype::f64), w.to(Dtype::f64), {});
  for (Dtype half : kHalves) {
    const ComputeType compute(half);
    CHECK(compute_type() == half);
    CHECK(same_bits(linear(x, w, {}), before));
    CHECK(same_bits(linear(x.to(Dtype::f64), w.to(Dtype::f64), {}), exact));
    {
      const ComputeType inner(Dtype::f32);
      CHECK(compute_type() == Dtype::f32);
    }
    CHECK(compute_type() == half);
  }
  CHECK(compute_type() == Dtype::f32);
  CHECK_THROWS_AS(ComputeType(Dtype::f64), Error);
}

TEST_CASE("half compute: the same bits with any number of threads") {
  const std::vector<Tensor> inputs = {normal({700, 96}, 1), normal({200, 96}, 2), normal({200}, 3)};
  const Tensor dy = normal({700, 200}, 4);
  for (Dtype half : kHalves) {
    const ComputeType compute(half);
    Run first;
    for (int n : {1, 2, 3}) {
      Threads set(n);
      const Run out = run([](In x) { return linear(x[0], x[1], x[2]); }, inputs, dy);
      if (n == 1) first = out;
      CHECK(same_bits(out.y, first.y));
      for (size_t i = 0; i < 3; ++i) CHECK(same_bits(out.grads[i], first.grads[i]));
    }
  }
}

}  // namespace brine::test
