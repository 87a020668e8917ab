// The tape: order, accumulation, release, refusals, recomputation and anomaly mode.
#include <algorithm>

#include "autograd/ops.h"
#include "tests/gradcheck.h"
#include "tests/refusals.h"

using namespace brine;
using namespace brine::test;

namespace {

Tensor leaf(double value) { return require_grad(Tensor::full({1}, value)); }

// A layer with parameters besides its input and a dropout inside.
struct Layer {
  Tensor w = require_grad(normal({6, 6}, 50)), b = require_grad(normal({6}, 51));
  Tensor operator()(const Tensor& x, RandomStream* random) const {
    Tensor y = gelu(linear(x, w, b));
    return dropout(mul(y, y), 0.4, *random);
  }
};

}  // namespace

TEST_CASE("a tensor used twice gets both gradients, diamonds add up") {
  Tensor x = leaf(3);
  Tensor y = mul(x, x);          // x^2
  Tensor z = add(y, mul(y, x));  // x^2 + x^3
  Tensor out = mul(z, y);        // x^4 + x^5
  backward(out);
  CHECK(grad(x).item() == doctest::Approx(4 * 27 + 5 * 81));
}

TEST_CASE("nodes are visited newest first: an old branch waits for a longer young one") {
  Tensor x = leaf(2);
  Tensor a = scale(x, 3);
  Tensor long_way = a;
  for (int i = 0; i < 10; ++i) long_way = scale(long_way, 1.5);
  Tensor out = add(a, long_way);
  backward(out);
  CHECK(grad(x).item() == doctest::Approx(3 + 3 * std::pow(1.5, 10)));
}

TEST_CASE("a gradient that two inputs share is not written to") {
  Tensor x = leaf(1), y = leaf(1);
  Tensor a = scale(x, 2), b = scale(y, 2);
  Tensor c = add(a, b);           // a and b get the same tensor
  backward(add(c, scale(a, 5)));  // a's is added to
  CHECK(grad(x).item() == doctest::Approx(12));
  CHECK(grad(y).item() == doctest::Approx(2));
}

TEST_CASE("leaf buffers are added to, also one given from outside") {
  Tensor buffer = Tensor::full({1}, 100);
  Tensor x = require_grad(Tensor::full({1}, 3), buffer);
  backward(mul(x, x));
  CHECK(buffer.item() == doctest::Approx(106));
  backward(mul(x, x));
  CHECK(buffer.item() == doctest::Approx(112));
  CHECK(grad(x).shares_memory(buffer));
  backward(x, Tensor::full({1}, 0.5));
  CHECK(buffer.item() == doctest::Approx(112.5));
}

TEST_CASE("a chain of a million nodes is released, and walked, without recursion") {
  auto chain = [](Tensor y) {
    for (int i = 0; i < 1000000; ++i) {
      y = record("step", y.detach().view({1}), {y},
                 [](const Tensor& dy, Gradients& grads) { grads.set(0, dy); });
    }
    return y;
  };
  Tensor x = leaf(1);
  chain(x);
  Tensor y = chain(x);
  backward(y);
  CHECK(grad(x).item() == 1);
}

TEST_CASE("a tape that is dropped gives all its memory back") {
  Tensor x = require_grad(normal({40, 50}, 1)), w = require_grad(normal({50}, 2));
  const int64_t before = allocator_stats().live;
  {
    RandomStream random;
    Tensor y = layernorm(x, w, w);
    y = dropout(relu(sigmoid(gelu(y))), 0.5, random);
    y = softmax(reshape(mul(y, y), {1, 1, 40, 50}), 1, {.causal = false, .lengths = {}});
    y = sum(cross_entropy(reshape(y, {40, 50}), ids({40}, 3, 50)));
    CHECK(allocator_stats().live > before);
  }
  CHECK(allocator_stats().live == before);
}

TEST_CASE("memory is freed while backward walks") {
  Tensor x = require_grad(normal({100, 100}, 1));
  Tensor y = x;
  for (int i = 0; i < 20; ++i) y = gelu(y);
  y = sum(y);
  const int64_t before = allocator_stats().live;
  reset_peak();
  backward(y);
  CHECK(allocator_stats().peak_live - before < 4 * 50000);
  // Remaining: x's gradient. The saved inputs are released although y lives.
  CHECK(allocator_stats().live - before < -15 * 40000);
}

TEST_CASE("NoGrad records nothing, and ends with its scope") {
  Tensor x = leaf(2);
  {
    NoGrad off;
    CHECK_FALSE(grad_enabled());
    CHECK(mul(x, x).node() == nullptr);
    CHECK_FALSE(wants_grad(x));
    NoGrad again;
  }
  CHECK(grad_enabled());
  CHECK(mul(x, x).node() != nullptr);
  Tensor constant = Tensor::full({1}, 2);
  CHECK(mul(constant, constant).node() == nullptr);
}

TEST_CASE("a saved tensor that was changed in place is refused") {
  Tensor x = leaf(2), c = Tensor::full({1}, 5);
  Tensor y = mul(x, c);
  c.data<float>()[0] = 6;
  c.bump_version();
  CHECK_THROWS_WITH_AS(backward(y), "mul: a tensor saved for backward was changed in place", Error);
  Tensor z = scale(x, 3);  // saves nothing: may be changed
  z.detach().bump_version();
  CHECK_NOTHROW(backward(z));
}

TEST_CASE("backward twice through one op is refused") {
  Tensor x = leaf(2), y = mul(x, x);
  backward(y);
  CHECK_THROWS_WITH_AS(backward(y), "mul: backward was already run through this op", Error);
}

TEST_CASE("backward refuses invalid calls") {
  Tensor x = require_grad(normal({3}, 1)), c = normal({3}, 2);
  CHECK_THROWS_WITH_AS(backward(mul(x, x)), doctest::Contains("is not a scalar"), Error);
  CHECK_THROWS_WITH_AS(backward(mul(x, x), normal({2}, 3)), doctest::Contains("must match"), Error);
  CHECK_THROWS_WITH_AS(backward(c, c), doctest::Contains("nothing to differentiate"), Error);
  CHECK_THROWS_WITH_AS(grad(x), doctest::Contains("no gradient reached"), Error);
  CHECK_THROWS_WITH_AS(grad(c), doctest::Contains("requires no gradient"), Error);
  CHECK_THROWS_AS(require_grad(ids({3}, 1, 2)), Error);
  CHECK_THROWS_AS(require_grad(c, normal({4}, 1)), Error);
  CHECK_THROWS_WITH_AS(x.view({3, 1}), doctest::Contains("on the tape"), Error);
  Tensor bad = record("bad", normal({3}, 1), {x},
                      [](const Tensor&, Gradients& grads) { grads.set(0, normal({4}, 1)); });
  CHECK_THROWS_WITH_AS(backward(bad, c), doctest::Contains("bad: the gradient of input 0"), Error);
}

TEST_CASE("lambdas get which inputs require a gradient") {
  Tensor x = leaf(2), c = Tensor::full({1}, 3);
  std::vector<bool> wanted;
  Tensor y = record("probe", Tensor::full({1}, 1), {x, c, Tensor()},
                    [&](const Tensor& dy, Gradients& grads) {
                      for (int i = 0; i < 3; ++i) wanted.push_back(grads.wanted(i));
                      grads.set(0, dy);
                      grads.set(1, dy);  // ignored
                      CHECK_THROWS_AS(grads.accumulate(1), Error);
                    });
  backward(y);
  CHECK(wanted == std::vector<bool>{true, false, false});
}

TEST_CASE("accumulate adds into the buffer that is there") {
  Tensor x = require_grad(normal({2, 3, 8}, 1));
  Tensor y = scale(x, 1);
  Tensor q = split_heads(y, 2, 0, 4), k = split_heads(y, 2, 2, 4);
  Tensor dy = normal(q.shape(), 2);
  backward(add(q, scale(k, 2)), dy);
  const auto g = grad(x).to_vector(), d = dy.to_vector();
  for (int64_t i = 0; i < x.numel(); ++i) {
    const int64_t b = i / 24, t = i / 8 % 3, part = i / 4 % 2, h = i / 2 % 2, e = i % 2;
    CHECK(g[size_t(i)] ==
          doctest::Approx(d[size_t(((b * 2 + h) * 3 + t) * 2 + e)] * double(part + 1)));
  }
}

TEST_CASE("checkpoint equals the plain run bit for bit, dropout and parameters included") {
  for (int threads : {1, 2}) {
    Threads set(threads);
    auto run_layers = [](bool recompute) {
      RandomStream random{1, 2, 3};
      Layer first, second;
      Tensor x = require_grad(normal({6, 6}, 60)), y = x;
      for (const Layer* layer : {&first, &second}) {
        auto f = [layer, &random](In in) { return (*layer)(in[0], &random); };
        y = recompute ? checkpoint(f, {y}, &random) : f({y});
      }
      const uint64_t counter = random.counter;
      Tensor out = y.detach().clone();
      backward(y, normal({6, 6}, 61));
      CHECK(random.counter == counter);
      return std::vector<Tensor>{out,           grad(x),        grad(first.w),
                                 grad(first.b), grad(second.w), grad(second.b)};
    };
    const auto plain = run_layers(false), again = run_layers(true);
    for (size_t i = 0; i < plain.size(); ++i) CHECK(same_bits(plain[i], again[i]));
  }
}

TEST_CASE("checkpoint keeps only its inputs, and works when no input requires a gradient") {
  Layer layer;
  RandomStream random;
  auto f = [&](In in) { return layer(in[0], &random); };
  Tensor x = normal({6, 6}, 1);
  Tensor y = checkpoint(f, {x}, &random);
  backward(y, normal({6, 6}, 2));
  CHECK(has_grad(layer.w));
  CHECK(largest(grad(layer.w).to_vector()) > 0);
  Tensor big = require_grad(normal({100, 100}, 3));
  auto deep = [](In in) {
    Tensor z = in[0];
    for (int i = 0; i < 10; ++i) z = gelu(z);
    return z;
  };
  const int64_t before = allocator_stats().live;
  Tensor out = checkpoint(deep, {big});
  CHECK(allocator_stats().live - before < 2 * 45000);
  NoGrad off;
  CHECK(checkpoint(deep, {big}).node() == nullptr);
}

TEST_CASE("checkpoint refuses inputs that were changed in place") {
  Tensor x = require_grad(normal({4}, 1));
  Tensor y = checkpoint([](In in) { return gelu(in[0]); }, {x});
  x.bump_version();
  CHECK_REFUSES(backward(y, normal({4}, 2)), "checkpoint: a tensor saved");
}

TEST_CASE("attach_loss inside a checkpoint reaches the loss's inputs once") {
  auto run_it = [](bool recompute) {
    Tensor x = require_grad(normal({4, 4}, 1)), w = require_grad(normal({4, 4}, 2));
    auto f = [&](In in) {
      Tensor h = mul(in[0], w);
      return attach_loss(h, dot(h, h));
    };
    Tensor y = recompute ? checkpoint(f, {x}) : f({x});
    backward(y, normal({4, 4}, 3));
    return std::vector<Tensor>{grad(x), grad(w)};
  };
  const auto plain = run_it(false), again = run_it(true);
  CHECK(same_bits(plain[0], again[0]));
  CHECK(same_bits(plain[1], again[1]));
}

TEST_CASE("anomaly mode names the op that first made a NaN") {
  struct Mode {
    Mode() { set_anomaly_detection(true); }
    ~Mode() { set_anomaly_detection(false); }
  } mode;
  Tensor x = leaf(INFINITY), zero = Tensor::full({1}, 0);
  CHECK_THROWS_WITH_AS(mul(x, zero), doctest::Contains("mul: the output has 1 of 1"), Error);
  Tensor y =
      record("broken", Tensor::full({1}, 1), {leaf(1)}, [](const Tensor& dy, Gradients& grads) {
        Tensor dx = dy.clone();
        dx.data<float>()[0] = NAN;
        grads.set(0, dx);
      });
  CHECK_THROWS_WITH_AS(backward(y), doctest::Contains("broken: a gradient has 1 of 1"), Error);
  Tensor z = record("adding", Tensor::full({1}, 1), {leaf(1)}, [](const Tensor&, Gradients& grads) {
    grads.accumulate(0).data<float>()[0] = NAN;
  });
  CHECK_THROWS_WITH_AS(backward(z), doctest::Contains("adding: a gradient has 1 of 1"), Error);
}

TEST_CASE("after the first step no more memory is requested from the system") {
  Tensor table = require_grad(normal({50, 64}, 1)), w = require_grad(normal({64}, 2));
  RandomStream random;
  auto step = [&] {
    Tensor h = layernorm(embedding(table, ids({4, 16}, 3, 50)), w, w);
    Tensor q = split_heads(h, 4);
    h = merge_heads(mul(q, q));
    h = checkpoint([&](In in) { return dropout(gelu(in[0]), 0.1, random); }, {h}, &random);
    backward(sum(cross_entropy(reshape(h, {64, 64}), ids({64}, 4, 64))));
  };
  step();
  step();
  const int64_t calls = allocator_stats().system_calls;
  for (int i = 0; i < 5; ++i) step();
  CHECK(allocator_stats().system_calls == calls);
}
