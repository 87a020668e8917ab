// What ops do beside their values: views, memory, types, refusals.
#include "autograd/ops.h"
#include "tests/gradcheck.h"
#include "tests/refusals.h"

using namespace brine;
using namespace brine::test;

TEST_CASE("attach_loss sends 1 to the loss and passes the rest through") {
  Tensor x = require_grad(normal({3, 4}, 1)), w = require_grad(normal({1}, 2));
  Tensor y = attach_loss(x, mul(w, w));
  CHECK(same_bits(y, x));
  Tensor dy = normal({3, 4}, 3);
  backward(y, dy);
  CHECK(same_bits(grad(x), dy));
  CHECK(grad(w).item() == doctest::Approx(2 * w.item()));
}

TEST_CASE("reshape of a contiguous tensor is a view with its own handle") {
  Tensor x = require_grad(normal({4, 6}, 1));
  Tensor y = reshape(x, {6, 4});
  CHECK(y.shares_memory(x));
  CHECK(y.node() != x.node());
  Tensor same = reshape(x, {4, 6});
  CHECK(same.node() != x.node());
  CHECK(x.node()->is_leaf);
  NoGrad off;
  CHECK(reshape(x, {24}).node() == nullptr);
}

TEST_CASE("the gradient of the logits takes their memory when nothing else refers to them") {
  Tensor x = require_grad(normal({64, 1000}, 1)), target = ids({64}, 2, 1000);
  for (bool hold : {false, true}) {
    Tensor logits = scale(x, 2), loss = sum(cross_entropy(logits, target));
    if (!hold) logits = Tensor();
    reset_peak();
    const int64_t before = allocator_stats().live;
    Tensor held = hold ? logits.clone() : Tensor();
    backward(loss);
    const int64_t more = allocator_stats().peak_live - before;
    if (hold) {
      CHECK(same_bits(logits, held));
    } else {
      CHECK(more < 2 * 64 * 1000 * 4 + 100000);  // the gradients of x and of scale's input only
    }
  }
}

TEST_CASE("ops refuse what does not fit, by name") {
  Tensor a = normal({3, 4}, 1), b = normal({4, 3}, 2), d = normal({3, 4}, 3, Dtype::f64);
  RandomStream random;
  auto says = [](const char* text) { return doctest::Contains(text); };
  CHECK_THROWS_WITH_AS(add(a, b), says("add: f32 [3, 4] and f32 [4, 3]"), Error);
  CHECK_THROWS_WITH_AS(mul(a, d), says("mul: "), Error);
  CHECK_THROWS_WITH_AS(dot(a, b), says("dot: "), Error);
  CHECK_THROWS_WITH_AS(scale_rows(a, normal({4}, 4)), says("scale_rows: "), Error);
  CHECK_THROWS_WITH_AS(dropout(a, 1.0, random), says("dropout: probability 1"), Error);
  CHECK_THROWS_WITH_AS(zero_padding(a, ids({3}, 1, 4)), says("zero_padding: lengths"), Error);
  CHECK_THROWS_WITH_AS(split_heads(normal({1, 2, 6}, 1), 4), says("split_heads: "), Error);
  CHECK_THROWS_WITH_AS(merge_heads(a), says("merge_heads: "), Error);
  CHECK_REFUSES(rmsnorm(a, normal({3}, 1)), "rmsnorm: weight f32 [3] must be f32 [4]");
  CHECK_THROWS_WITH_AS(repeat_heads(a, 2), says("repeat_heads: [3, 4]"), Error);
  CHECK_REFUSES(layernorm(a, normal({3}, 1), normal({4}, 2)), "layernorm: weight");
  CHECK_THROWS_WITH_AS(softmax(a, 1, {}), says("softmax: scores [3, 4]"), Error);
  CHECK_THROWS_WITH_AS(embedding(a, ids({5}, 1, 3, Dtype::i64)), says("embedding: ids"), Error);
  CHECK_THROWS_WITH_AS(embedding(a, Tensor::from(std::vector<int32_t>{0, 3}, {2})),
                       says("embedding: id 3 at index 1"), Error);
  CHECK_THROWS_WITH_AS(cross_entropy(a, Tensor::from(std::vector<int32_t>{0, -2, 1}, {3})),
                       says("target -2 at index 1"), Error);
  CHECK_THROWS_WITH_AS(kl_logits(a, {b, {}, {}}), says("kl_logits: "), Error);
  CHECK_THROWS_WITH_AS(kl_logits(a, {normal({3, 2}, 1), {}, {}}), says("without ids"), Error);
  CHECK_THROWS_WITH_AS(attach_loss(a, b), says("attach_loss: "), Error);
  CHECK_REFUSES(squared_distance(a, a, normal({4}, 1)), "squared_distance: weight");
  CHECK_THROWS_WITH_AS(gelu(a.to(Dtype::bf16)), says("wanted f32 or f64, got bf16"), Error);
}
