// The Performer's prior on the device, as on the CPU.
#include <utility>

#include "autograd/ops_estimator.h"
#include "tensor/cuda/estimator/reaches.h"
#include "tensor/kernels/estimator.h"
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

namespace {

struct PriorSize {
  int64_t B, H, T, m, K, step;
  std::vector<int64_t> lengths;  // none: no padding
  int64_t group = 1;             // heads of queries for one of keys
  double floor = 0;
  int64_t units = 0;

  ColumnGrid grid() const { return {step, units}; }
  Tensor visible() const { return lengths.empty() ? Tensor() : Tensor::from(lengths, Shape{B}); }
};

const std::vector<PriorSize> kPriorSizes{
    {1, 1, 1, 1, 1, 1, {}},
    {2, 2, 7, 5, 3, 1, {0, 6}},
    {1, 3, 40, 4, 64, 1, {}},
    {2, 1, 130, 20, 16, 1, {130, 71}},
    {2, 2, 65, 9, 12, 3, {64, 65}},
    {1, 2, 200, 133, 37, 4, {}},
    {2, 1, 64, 6, 700, 2, {3, 64}},
    {1, 1, 70, 16, 4000, 7, {}},
    {1, 1, 0, 4, 3, 1, {}},
    {2, 4, 33, 7, 5, 1, {33, 20}, 2, 0.2},
    {1, 3, 50, 4, 9, 2, {}, 3, 0.1},
    {1, 2, 260, 5, 9, 1, {}, 1, 0, 2},
    {2, 2, 170, 3, 5, 3, {170, 91}, 2, 0.1, 3},
    {2, 1, 4200, 3, 3, 70, {4200, 201}}};  // spans of chunks, long columns

void compare_prior(const PriorSize& s, bool causal, Tolerance tolerance = {}) {
  const Shape features{s.B, s.H, s.T, s.m};
  const Shape scores{s.B, s.H, (s.T + s.step - 1) / s.step, s.K};
  compare_both(
      join("performer_prior ", features, " ", scores, causal),
      [&](const On& on, Dtype dtype) {
        Tensor q = on(uniform(features, 1, 0.1, 1, dtype));
        Tensor k = on(uniform({s.B, s.H / s.group, s.T, s.m}, 2, 0.1, 1, dtype));
        Tensor x = on(normal(scores, 3, dtype)), dy = on(normal(scores, 4, dtype));
        Tensor gain = on(normal({s.H}, 5, dtype)), dgain = on(normal({s.H}, 6, dtype));
        Tensor y = Tensor::like(x), dq = Tensor::like(q), dk = Tensor::like(k);
        BRINE_CALL(y, performer_prior, y, x, gain, q, k, Visibility{causal, s.visible()}, s.grid(),
                   s.floor);
        BRINE_CALL(y, performer_prior_backward, dgain, dq, dk, dy, gain, q, k,
                   Visibility{causal, on(s.visible())}, s.grid(), s.floor);
        return std::vector{y, dgain, dq, dk};
      },
      tolerance);
}

}  // namespace

TEST_CASE("cuda: the Performer's prior and its gradients") {
  for (const PriorSize& s : kPriorSizes) {
    for (bool causal : {false, true}) compare_prior(s, causal);
  }
}

// Features of ReLU, most of them 1e-3: the logarithm of a small product with a column next to large
// ones. Its slopes, up to 1,000, multiply the rounding errors of prefix sums of up to 16 keys.
TEST_CASE("cuda: the Performer's prior of small products") {
  auto relu = [](const Shape& shape, uint64_t seed, Dtype dtype) {
    const Tensor x = normal(shape, seed, Dtype::f32, -1, 2);
    float* p = x.data<float>();
    for (int64_t i = 0; i < x.numel(); ++i) p[i] = std::max(p[i], 0.0f) + 1e-3f;
    return x.to(dtype);
  };
  for (const auto& [T, K] : {std::pair{33, 16}, {70, 32}, {250, 64}}) {
    const Shape features{1, 2, T, 5}, scores{1, 2, T, K};
    const Visibility visible{.causal = true};
    const std::string what = join("small products of ", T, " tokens");
    auto outputs = [&](bool gradients) {
      return [=](const On& on, Dtype dtype) {
        const Tensor q = on(relu(features, 1, dtype)), k = on(relu(features, 2, dtype));
        const Tensor gain = on(Tensor::full({2}, 1, dtype)),
                     zero = on(Tensor::zeros(scores, dtype));
        const Tensor y = Tensor::like(zero), dq = Tensor::like(q), dk = Tensor::like(k);
        const Tensor dy = on(normal(scores, 3, dtype)), dgain = on(Tensor::zeros({2}, dtype));
        const ColumnGrid grid{1, 0};
        if (gradients) {
          BRINE_CALL(y, performer_prior_backward, dgain, dq, dk, dy, gain, q, k, visible, grid,
                     0.0);
          return std::vector{dgain, dq, dk};
        }
        BRINE_CALL(y, performer_prior, y, zero, gain, q, k, visible, grid, 0.0);
        return std::vector{y};
      };
    };
    compare_both(what, outputs(false), {.f64 = 1e-11});
    compare_both(what + ", gradients", outputs(true), {.f32 = 1e-4, .f64 = 1e-11});
  }
}

TEST_CASE("cuda: the Performer's prior in batches of heads, with little memory") {
  const PriorSize s{2, 3, 90, 6, 10, 1, {90, 41}};
  for (int64_t bytes : {int64_t(1), int64_t(2) * (91 * 6 + 2 * 6 + 900) * 8}) {
    const ScratchLimit small(bytes);
    for (bool causal : {false, true}) compare_prior(s, causal);
  }
}

// As of 131,072 tokens, whose prefix sums begin anew every 2,048 keys and have columns of 1,024:
// the products with a column are differences of sums over up to 30 times as many keys here.
TEST_CASE("cuda: the Performer's prior where prefix sums are long") {
  int64_t& limit = cuda::columns::max_reaches();
  const AtEnd reset{[&limit, before = std::exchange(limit, 3)] { limit = before; }};
  compare_prior({1, 1, 4200, 20, 4, 200, {}}, true, {.f32 = 1e-4});
  compare_prior({1, 1, 4200, 3, 64, 300, {}, 1, 0, 2}, true, {.f32 = 1e-4});
}

TEST_CASE("cuda: performer_prior_step from nothing, by one key and by many") {
  struct Step {
    int64_t m, K, units;
  };
  for (Step s : {Step{1, 1, 0}, Step{5, 7, 2}, Step{40, 33, 0}, Step{300, 16, 1}}) {
    for (bool moved : {false, true}) {
      compare_both(join("performer_prior_step ", s.m, " ", s.K), [&](const On& on, Dtype dtype) {
        const int64_t B = 4, H = 4, G = moved ? 2 : 4, S = 90, padded = border_columns(s.m);
        Tensor keys = on(uniform({B, G, S, s.m}, 1, 0.1, 1).to(stored(dtype, s.units > 0)));
        Tensor borders = on(normal({B, G, s.K + 1, padded}, 2, Dtype::f64));
        Tensor gain = on(normal({H}, 3, dtype)), now = lengths_of({0, 0, 0, 0});
        Tensor at = moved ? on(now) : now;
        std::vector<Tensor> out;
        // The third sequence waits for its first key, and begins again once.
        for (std::vector<int64_t> width : {std::vector<int64_t>{1, 50, 0, 3},
                                           {2, 51, 1, 30},
                                           {3, 51, 2, 89},
                                           {90, 52, 40, 90}}) {
          const uint64_t seed = 10 + out.size();
          Tensor q = on(uniform({B, H, 1, s.m}, seed, 0.1, 1, dtype));
          Tensor scores = on(normal({B, H, 1, s.K}, seed + 100, dtype));
          Tensor y = Tensor::like(scores), then = lengths_of(width);
          BRINE_CALL(y, performer_prior_step, y, borders, at, scores, gain, q, keys,
                     moved ? on(then) : then, moved ? 0.05 : 0.0, s.units);
          out.push_back(y);
          out.push_back(on(borders.to(kCpu)));
          out.push_back(on(at.to(kCpu)));
        }
        return out;
      });
    }
  }
}
