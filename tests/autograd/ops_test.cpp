// Every op on shapes, elements, rows and losses: one case each, from which check_op derives f32
// against f64, the gradient check, single gradients and equal bits for 1, 2 and 3 threads.
#include "autograd/ops.h"

#include "tests/gradcheck.h"

using namespace brine;
using namespace brine::test;

namespace {

using In = const std::vector<Tensor>&;

std::vector<OpCase> shape_cases() {
  Tensor x = normal({3, 4, 6}, 1);
  return {
      {"reshape",
       {x},
       [](In in) {
         return mul(reshape(in[0], {8, -1}), reshape(in[0], {8, 9}));
       }},
      {"permute",
       {x},
       [](In in) {
         return permute(in[0], {2, 0, 1});
       }},
      {"permute back",
       {x},
       [](In in) {
         return permute(in[0], {1, 2, 0});
       }},
      {"slice", {x}, [](In in) { return slice(in[0], -1, 2, 3); }},
      {"slices add up",
       {x},
       [](In in) { return mul(slice(in[0], 1, 0, 3), slice(in[0], 1, 1, 3)); }},
      {"concat_last", {x, normal({3, 4, 1}, 2)}, [](In in) { return concat_last(in[0], in[1]); }},
      {"cast", {x}, [](In in) { return cast(in[0], Dtype::f64); }},
      {"split_heads", {x}, [](In in) { return split_heads(in[0], 3); }},
      {"split_heads, packed",
       {normal({2, 5, 3 * 2 * 4}, 3)},
       [](In in) {
         Tensor q = split_heads(in[0], 2, 0, 3), v = split_heads(in[0], 2, 2, 3);
         return mul(q, v);
       }},
      {"merge_heads", {normal({2, 3, 5, 4}, 4)}, [](In in) { return merge_heads(in[0]); }},
  };
}

std::vector<OpCase> elementwise_cases() {
  Tensor a = normal({5, 33}, 10, Dtype::f32, 0, 2), b = normal({5, 33}, 11);
  Tensor lengths = Tensor::from(std::vector<int64_t>{2, 0, 4}, {3});
  return {
      {"add", {a, b}, [](In in) { return add(in[0], in[1]); }},
      {"add to itself", {a}, [](In in) { return add(in[0], in[0]); }},
      {"sub", {a, b}, [](In in) { return sub(in[0], in[1]); }},
      {"mul", {a, b}, [](In in) { return mul(in[0], in[1]); }},
      {"square", {a}, [](In in) { return mul(in[0], in[0]); }},
      {"scale", {a}, [](In in) { return scale(in[0], -1.7); }},
      {"relu", {a}, [](In in) { return relu(in[0]); }},
      {"gelu", {a}, [](In in) { return gelu(in[0]); }},
      {"sigmoid", {a}, [](In in) { return sigmoid(in[0]); }},
      {"tanh", {a}, [](In in) { return tanh(in[0]); }},
      {"dropout",
       {a},
       [](In in) {
         RandomStream random{3, 4, 5};
         return dropout(in[0], 0.3, random);
       }},
      {"scale_rows",
       {normal({2, 3, 33}, 14), normal({2, 3}, 15)},
       [](In in) { return scale_rows(in[0], in[1]); }},
      {"zero_padding",
       {normal({3, 4, 5}, 16), lengths},
       [](In in) { return zero_padding(in[0], in[1]); }},
      {"attach_loss",
       {a, normal({1}, 17)},
       [](In in) { return attach_loss(in[0], mul(in[1], in[1])); },
       {},
       1e-5,
       0},
  };
}

std::vector<OpCase> row_cases() {
  Tensor x = normal({2, 9, 33}, 20, Dtype::f32, 2);
  Tensor weight = Tensor::from(std::vector<float>{1, 0, 0.5, 2, 0}, {5});
  Tensor lengths = Tensor::from(std::vector<int64_t>{4, 7}, {2});
  auto visible = [](bool causal, Tensor lengths = {}) {
    return Visibility{.causal = causal, .lengths = lengths};
  };
  return {
      {"sum", {x}, [](In in) { return sum(in[0]); }},
      {"dot", {x, normal({2, 9, 33}, 21)}, [](In in) { return dot(in[0], in[1]); }},
      {"dot with itself", {x}, [](In in) { return dot(in[0], in[0]); }},
      {"running_mean", {x}, [](In in) { return running_mean(in[0]); }},
      {"squared_distance",
       {normal({5, 33}, 22), normal({5, 33}, 23)},
       [=](In in) { return squared_distance(in[0], in[1], weight.to(in[0].dtype())); }},
      {"layernorm",
       {x, normal({33}, 24), normal({33}, 25)},
       [](In in) { return layernorm(in[0], in[1], in[2]); }},
      {"layernorm, many rows",
       {normal({300, 3}, 26), normal({3}, 27), normal({3}, 28)},
       [](In in) { return layernorm(in[0], in[1], in[2], 1e-2); },
       {},
       1e-4},
      {"softmax",
       {normal({2, 2, 7, 7}, 29)},
       [=](In in) { return softmax(in[0], 0.6, visible(true)); }},
      {"softmax, both ways, lengths",
       {normal({2, 2, 7, 7}, 30)},
       [=](In in) { return softmax(in[0], 1.5, visible(false, lengths)); }},
      {"embedding",
       {normal({7, 33}, 31), ids({3, 5}, 32, 7)},
       [](In in) { return embedding(in[0], in[1]); }},
  };
}

std::vector<OpCase> loss_cases() {
  const int64_t R = 5, V = 37, n = 6;
  Tensor logits = normal({R, V}, 40, Dtype::f32, 1, 2),
         teacher = normal({R, V}, 41, Dtype::f32, 0, 2);
  Tensor target = ids({R}, 42, V);
  target.data<int32_t>()[3] = -1;
  std::vector<int32_t> listed;
  for (int64_t i = 0; i < R * n; ++i) listed.push_back(int32_t((i / n + i % n * 5) % V));
  Tensor picked = Tensor::from(listed, {R, n});
  auto top = [=](Dtype dtype) {
    Tensor all = teacher.to(Dtype::f64), values = Tensor::empty({R, n}, Dtype::f64);
    Tensor lse = Tensor::empty({R}, Dtype::f64);
    BRINE_CALL(all, log_sum_exp, lse, all);
    for (int64_t i = 0; i < R * n; ++i) {
      values.data<double>()[i] = all.data<double>()[i / n * V + listed[size_t(i)]];
    }
    return TopLogits{values.to(dtype), picked, lse.to(dtype)};
  };
  return {
      {"cross_entropy", {logits, target}, [](In in) { return cross_entropy(in[0], in[1]); }},
      {"cross_entropy of logits made on the way",
       {logits, target},
       [](In in) { return cross_entropy(scale(in[0], 0.5), in[1]); }},
      {"kl_logits",
       {logits},
       [=](In in) {
         return kl_logits(in[0], {teacher.to(in[0].dtype()), {}, {}});
       }},
      {"kl_logits, top values",
       {logits},
       [=](In in) { return kl_logits(in[0], top(in[0].dtype())); }},
      {"kl_logits, top values, of logits made on the way",
       {logits},
       [=](In in) { return kl_logits(scale(in[0], 0.5), top(in[0].dtype())); }},
  };
}

}  // namespace

TEST_CASE("ops on shapes") {
  for (const OpCase& c : shape_cases()) check_op(c);
}

TEST_CASE("elementwise ops") {
  for (const OpCase& c : elementwise_cases()) check_op(c);
}

TEST_CASE("ops on rows") {
  for (const OpCase& c : row_cases()) check_op(c);
}

TEST_CASE("losses") {
  for (const OpCase& c : loss_cases()) check_op(c);
}

TEST_CASE("attach_loss sends 1 to the loss and passes the rest through") {
  Tensor x = require_grad(normal({3, 4}, 1)), w = require_grad(normal({1}, 2));
  Tensor y = attach_loss(x, mul(w, w));
  CHECK(same_bits(y, x));
  Tensor dy = normal({3, 4}, 3);
  backward(y, dy);
  CHECK(same_bits(grad(x), dy));
  CHECK(grad(w).item() == doctest::Approx(2 * w.item()));
}

TEST_CASE("reshape of a contiguous tensor is a view on a handle of its own") {
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

TEST_CASE("gradients through cast reach the other type") {
  Tensor x = require_grad(normal({3, 5}, 1));
  backward(mul(cast(x, Dtype::f64), cast(x, Dtype::f64)), normal({3, 5}, 2, Dtype::f64));
  CHECK(grad(x).dtype() == Dtype::f32);
  CHECK(cast(x, Dtype::bf16).dtype() == Dtype::bf16);
  CHECK(cast(x, Dtype::f32).node() == x.node());
}

TEST_CASE("the gradient of the logits takes their memory when nobody else holds them") {
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
  CHECK_THROWS_WITH_AS(concat_last(a, b), says("concat_last: "), Error);
  CHECK_THROWS_WITH_AS(scale_rows(a, normal({4}, 4)), says("scale_rows: "), Error);
  CHECK_THROWS_WITH_AS(dropout(a, 1.0, random), says("dropout: probability 1"), Error);
  CHECK_THROWS_WITH_AS(zero_padding(a, ids({3}, 1, 4)), says("zero_padding: lengths"), Error);
  CHECK_THROWS_WITH_AS(split_heads(normal({1, 2, 6}, 1), 4), says("split_heads: "), Error);
  CHECK_THROWS_WITH_AS(merge_heads(a), says("merge_heads: "), Error);
  CHECK_THROWS_WITH_AS(layernorm(a, normal({3}, 1), normal({4}, 2)), says("layernorm: weight"),
                       Error);
  CHECK_THROWS_WITH_AS(softmax(a, 1, {}), says("softmax: scores [3, 4]"), Error);
  CHECK_THROWS_WITH_AS(embedding(a, ids({5}, 1, 3, Dtype::i64)), says("embedding: ids"), Error);
  CHECK_THROWS_WITH_AS(embedding(a, Tensor::from(std::vector<int32_t>{0, 3}, {2})),
                       says("embedding: id 3 at place 1"), Error);
  CHECK_THROWS_WITH_AS(cross_entropy(a, Tensor::from(std::vector<int32_t>{0, -2, 1}, {3})),
                       says("target -2 at place 1"), Error);
  CHECK_THROWS_WITH_AS(kl_logits(a, {b, {}, {}}), says("kl_logits: "), Error);
  CHECK_THROWS_WITH_AS(kl_logits(a, {normal({3, 2}, 1), {}, {}}), says("without ids"), Error);
  CHECK_THROWS_WITH_AS(attach_loss(a, b), says("attach_loss: "), Error);
  CHECK_THROWS_WITH_AS(squared_distance(a, a, normal({4}, 1)), says("squared_distance: weight"),
                       Error);
  CHECK_THROWS_WITH_AS(gelu(cast(a, Dtype::bf16)), says("wanted f32 or f64, got bf16"), Error);
}
