// Attention over lists of key blocks against dense attention under the same mask.
#include <cmath>

#include "autograd/compute_type.h"
#include "tests/block_cases.h"

namespace brine::test {
namespace {

// Dense attention under the mask by keys.
Tensor dense(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask) {
  const Tensor p = masked_softmax(group_matmul(q, k, true), mask, 1 / std::sqrt(double(q.dim(3))));
  return group_matmul(p, v, false);
}

double largest_difference(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = a.to_vector(), y = b.to_vector();
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) worst = std::max(worst, std::fabs(x[i] - y[i]));
  return worst;
}

}  // namespace

TEST_CASE("block_attention equals dense attention under its mask, with its gradients") {
  std::vector<BlockCase> cases = block_cases();
  cases.push_back({.H = 3,
                   .G = 1,
                   .T = 130,
                   .d = 8,
                   .config = {.block = 32, .chosen = 1, .tile = 16, .candidates = 2}});
  cases.push_back(
      {.H = 1, .G = 1, .T = 200, .d = 20, .config = {.block = 64, .chosen = 1, .tile = 64}});
  for (const BlockCase& c : cases) {
    CAPTURE(c.T);
    std::vector<Tensor> got, wanted;
    for (bool reference : {false, true}) {
      const Tensor q = require_grad(normal({c.B, c.H, c.T, c.d}, 3, Dtype::f64)),
                   k = require_grad(normal({c.B, c.G, c.T, c.d}, 4, Dtype::f64)),
                   v = require_grad(normal({c.B, c.G, c.T, c.d}, 5, Dtype::f64));
      const BlockMask mask =
          select_blocks(block_scores(c, q.detach(), k.detach()), c.config, c.visible(), c.T);
      const Tensor y = reference ? dense(q, k, v, block_mask_keys(mask, c.H, c.visible(), c.T))
                                 : block_attention(q, k, v, mask, c.visible(), 8);
      backward(y, normal(y.shape(), 6, Dtype::f64));
      (reference ? wanted : got) = {y.detach(), grad(q), grad(k), grad(v)};
    }
    for (size_t i = 0; i < got.size(); ++i) CHECK(largest_difference(got[i], wanted[i]) < 1e-12);
  }
}

TEST_CASE("block_attention of all blocks has the bits of flash_attention") {
  for (int64_t block : {16, 32, 64}) {
    for (Dtype type : {Dtype::f32, Dtype::f64}) {
      BlockCase c{.B = 2,
                  .H = 6,
                  .G = 2,
                  .T = 301,
                  .d = 32,
                  .config = {.block = block, .chosen = 40, .tile = 16},
                  .lengths = {301, 211}};
      const Tensor q = normal({2, 6, 301, 32}, 3, type), k = normal({2, 2, 301, 32}, 4, type),
                   v = normal({2, 2, 301, 32}, 5, type);
      const BlockMask mask = select_blocks(block_scores(c, q, k), c.config, c.visible(), c.T);
      CHECK(merge_heads(block_attention(q, k, v, mask, c.visible(), 8)).to_vector() ==
            flash_attention(q, k, v, c.visible()).to_vector());
    }
  }
}

TEST_CASE("block_attention rounds to bf16 as flash_attention does, in both directions") {
  BlockCase c{.H = 6, .G = 2, .T = 203, .d = 32, .config = {.block = 32, .chosen = 2, .tile = 16}};
  std::vector<std::vector<Tensor>> results;
  for (bool rounded : {false, true}) {
    const ComputeType type(rounded ? Dtype::bf16 : Dtype::f32);
    const Tensor q = require_grad(normal({1, 6, 203, 32}, 3, Dtype::f32)),
                 k = require_grad(normal({1, 2, 203, 32}, 4, Dtype::f32)),
                 v = require_grad(normal({1, 2, 203, 32}, 5, Dtype::f32));
    const BlockMask mask =
        select_blocks(block_scores(c, q.detach(), k.detach()), c.config, c.visible(), c.T);
    const Tensor y = block_attention(q, k, v, mask, c.visible(), 8);
    backward(y, normal(y.shape(), 6, Dtype::f32));
    results.push_back({y.detach(), grad(q), grad(k), grad(v)});
  }
  for (size_t i = 0; i < results[0].size(); ++i) {
    const std::vector<double> x = results[0][i].to_vector();
    double scale = 0;
    for (double value : x) scale = std::max(scale, std::fabs(value));
    const double difference = largest_difference(results[0][i], results[1][i]) / scale;
    CHECK(difference < 0.03);
    CHECK(difference > 1e-5);  // it was rounded
  }
}

TEST_CASE("block_attention_step: the last row of a pass, with caches in 16 bits too") {
  for (Dtype stored : {Dtype::f32, Dtype::bf16}) {
    BlockCase c{.H = 6, .G = 2, .T = 61, .d = 16, .config = {.block = 8, .chosen = 2, .tile = 4}};
    const Tensor q = normal({1, 6, 61, 16}, 3, Dtype::f32);
    const Tensor k = normal({1, 2, 61, 16}, 4, Dtype::f32).to(stored).to(Dtype::f32),
                 v = normal({1, 2, 61, 16}, 5, Dtype::f32).to(stored).to(Dtype::f32);
    const BlockMask mask = select_blocks(block_scores(c, q, k), c.config, c.visible(), c.T);
    const Tensor whole = block_attention(q, k, v, mask, c.visible(), 8);
    BlockMask last = mask;
    last.counts = mask.counts.slice(2, mask.tile_count() - 1, 1).contiguous();
    last.entries = mask.entries.slice(2, mask.tile_count() - 1, 1).contiguous();
    const Tensor y = block_attention_step(q.slice(2, 60, 1).contiguous(), k.to(stored),
                                          v.to(stored), last, Tensor::full({1}, 61, Dtype::i64));
    CHECK(largest_difference(y, whole.slice(2, 60, 1).contiguous()) < 1e-5);
  }
}

}  // namespace brine::test
