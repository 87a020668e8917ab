// The fused ops against the same ops composed from primitives: outputs and every gradient.
#include "tests/autograd/references.h"

#include "tests/gradcheck.h"

using namespace brine;
using namespace brine::test;

namespace {

using In = const std::vector<Tensor>&;

// Outputs and gradients of both, in f64 to 1e-12 of the largest value and in f32 to 2e-5.
void check_same(const std::string& what, const Function& fused, const Function& composed,
                const std::vector<Tensor>& inputs) {
  for (Dtype dtype : {Dtype::f64, Dtype::f32}) {
    const double tolerance = dtype == Dtype::f64 ? 1e-12 : 2e-5;
    const std::vector<Tensor> in = to_dtype(inputs, dtype);
    const Tensor dy = cotangent(fused(in));
    const Run a = run(fused, in, dy), b = run(composed, in, dy);
    const std::string name = join(what, " ", dtype);
    CHECK(close_to_scale(a.y, b.y, tolerance, name));
    for (size_t i = 0; i < in.size(); ++i) {
      CHECK(close_to_scale(a.grads[i], b.grads[i], tolerance, join(name, ", gradient of ", i)));
      CHECK(largest(b.grads[i].to_vector()) > 1e-3);
    }
  }
}

// Both ways and causal, without lengths and with some of them, one of which is 0.
std::vector<Visibility> visibilities(int64_t B, int64_t T) {
  std::vector<int64_t> some;
  for (int64_t b = 0; b < B; ++b) some.push_back(b == 1 ? 0 : std::max<int64_t>(1, T - b));
  const Tensor lengths = Tensor::from(some, {B});
  return {{.causal = true, .lengths = {}},
          {.causal = false, .lengths = {}},
          {.causal = true, .lengths = lengths},
          {.causal = false, .lengths = lengths}};
}

std::string named(const char* op, int64_t T, const Visibility& visible) {
  return join(op, " T=", T, visible.causal ? " causal" : "",
              visible.lengths.defined() ? " lengths" : "");
}

}  // namespace

TEST_CASE("layernorm is its definition in primitives") {
  for (const Shape& shape : {Shape{1, 5}, Shape{5, 33}, Shape{2, 3, 100}}) {
    const int64_t C = shape[shape.rank() - 1];
    check_same(
        join("layernorm ", shape), [](In in) { return layernorm(in[0], in[1], in[2], 1e-3); },
        [](In in) { return reference::layernorm(in[0], in[1], in[2], 1e-3); },
        {normal(shape, 1, Dtype::f32, 2), normal({C}, 2), normal({C}, 3)});
  }
}

TEST_CASE("softmax over the visible keys is its definition in primitives") {
  for (int64_t T : {2, 3, 17}) {
    for (const Visibility& visible : visibilities(3, T)) {
      check_same(
          named("softmax", T, visible), [=](In in) { return softmax(in[0], 0.6, visible); },
          [=](In in) { return reference::softmax(in[0], 0.6, visible); },
          {normal({3, 2, T, T}, 4, Dtype::f32, 1, 3)});
    }
  }
}

TEST_CASE("attention, as dense ops and by tiles, is its definition in primitives") {
  for (int64_t T : {2, 3, 17}) {
    for (const Visibility& visible : visibilities(3, T)) {
      const Shape shape{3, 2, T, 8};
      const std::vector<Tensor> qkv = {normal(shape, 5), normal(shape, 6), normal(shape, 7)};
      auto composed = [=](In in) { return reference::attention(in[0], in[1], in[2], visible); };
      auto dense = [=](In in) {
        const Tensor scores = matmul(in[0], in[1], false, true);
        return matmul(softmax(scores, 1 / std::sqrt(8.0), visible), in[2]);
      };
      auto tiles = [=](In in) {
        return split_heads(flash_attention(in[0], in[1], in[2], visible), 2);
      };
      check_same(named("dense attention", T, visible), dense, composed, qkv);
      check_same(named("flash_attention", T, visible), tiles, composed, qkv);
    }
  }
}

TEST_CASE("linear attention of ReLU features is its definition in primitives") {
  const int64_t d = 4, m = 6;
  const Tensor projection = normal({m, d}, 8);
  for (int64_t T : {2, 3, 17}) {
    for (const Visibility& visible : visibilities(3, T)) {
      const Shape shape{3, 2, T, d};
      auto fused = [=](In in) {
        const Tensor R = projection.to(in[0].dtype());
        const Tensor phi_q = relu_features(in[0], R, 0.1, visible.lengths);
        const Tensor phi_k = relu_features(in[1], R, 0.1, visible.lengths);
        return linear_attention(phi_q, phi_k, {}, in[2], visible, 1e-3);
      };
      auto composed = [=](In in) {
        const Tensor R = projection.to(in[0].dtype());
        const Tensor phi_q = reference::relu_features(in[0], R, 0.1, visible);
        const Tensor phi_k = reference::relu_features(in[1], R, 0.1, visible);
        return reference::linear_attention(phi_q, phi_k, in[2], visible, 1e-3);
      };
      check_same(named("linear attention", T, visible), fused, composed,
                 {normal(shape, 9), normal(shape, 10), normal(shape, 11)});
    }
  }
}

TEST_CASE("linear attention of elu + 1: the fused sums serve features composed from primitives") {
  for (const Visibility& visible : visibilities(3, 17)) {
    const Shape shape{3, 2, 17, 4};
    auto fused = [=](In in) {
      return linear_attention(reference::elu_features(in[0]), reference::elu_features(in[1]), {},
                              in[2], visible, 1e-3);
    };
    auto composed = [=](In in) {
      return reference::linear_attention(reference::elu_features(in[0]),
                                         reference::elu_features(in[1]), in[2], visible, 1e-3);
    };
    check_same(named("elu attention", 17, visible), fused, composed,
               {normal(shape, 12), normal(shape, 13), normal(shape, 14)});
  }
}

TEST_CASE("a method in five lines of primitives is the fused linear attention without eps") {
  const Shape shape{2, 2, 9, 4};
  auto fused = [](In in) {
    return linear_attention(reference::elu_features(in[0]), reference::elu_features(in[1]), {},
                            in[2], {.causal = true, .lengths = {}}, 0);
  };
  check_same("elu_attention", fused,
             [](In in) { return reference::elu_attention(in[0], in[1], in[2]); },
             {normal(shape, 18), normal(shape, 19), normal(shape, 20)});
}

TEST_CASE("the references pass a gradient check of their own") {
  const Visibility visible{.causal = true,
                           .lengths = Tensor::from(std::vector<int64_t>{4, 2}, {2})};
  const std::vector<Tensor> qkv = {normal({2, 1, 4, 3}, 15), normal({2, 1, 4, 3}, 16),
                                   normal({2, 1, 4, 3}, 17)};
  CHECK(gradcheck([=](In in) { return reference::attention(in[0], in[1], in[2], visible); }, qkv) <
        1e-6);
  auto linear = [=](In in) {
    return reference::linear_attention(reference::elu_features(in[0]),
                                       reference::elu_features(in[1]), in[2], visible, 1e-3);
  };
  CHECK(gradcheck(linear, qkv) < 1e-6);
}
