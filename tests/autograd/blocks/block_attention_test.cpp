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

std::vector<Tensor> block_qkv(const BlockCase& c, Dtype type) {
  const Shape keys{c.B, c.G, c.T, c.d};
  return {normal({c.B, c.H, c.T, c.d}, 3, type), normal(keys, 4, type), normal(keys, 5, type)};
}

// What is chosen of q and k.
BlockMask mask_of(const BlockCase& c, const std::vector<Tensor>& qkv) {
  return select_blocks(block_scores(c, qkv[0], qkv[1]), c.config, c.visible(), c.T);
}

// block_attention() under the mask and its gradients.
Run attended(const BlockCase& c, const std::vector<Tensor>& qkv, const BlockMask& mask) {
  auto f = [&](In x) { return block_attention(x[0], x[1], x[2], mask, c.visible(), 8); };
  return run(f, qkv, normal(qkv[0].shape(), 6, qkv[0].dtype()));
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
    const std::vector<Tensor> qkv = block_qkv(c, Dtype::f64);
    const BlockMask mask = mask_of(c, qkv);
    const Tensor keys = csr_to_mask(blocks_to_csr(mask, c.H, c.visible(), c.T));
    auto reference = [&](In x) { return dense(x[0], x[1], x[2], keys); };
    const Run got = attended(c, qkv, mask),
              wanted = run(reference, qkv, normal(qkv[0].shape(), 6, Dtype::f64));
    CHECK(close(got.y, wanted.y, 1e-12, 0));
    for (size_t i = 0; i < 3; ++i) CHECK(close(got.grads[i], wanted.grads[i], 1e-12, 0));
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
      const std::vector<Tensor> x = block_qkv(c, type);
      CHECK(merge_heads(attended(c, x, mask_of(c, x)).y).to_vector() ==
            flash_attention(x[0], x[1], x[2], c.visible()).to_vector());
    }
  }
}

TEST_CASE("block_attention rounds to bf16 as flash_attention does, in both directions") {
  BlockCase c{.H = 6, .G = 2, .T = 203, .d = 32, .config = {.block = 32, .chosen = 2, .tile = 16}};
  const std::vector<Tensor> qkv = block_qkv(c, Dtype::f32);
  const BlockMask mask = mask_of(c, qkv);
  Run exact = attended(c, qkv, mask), rounded;
  {
    const ComputeType type(Dtype::bf16);
    rounded = attended(c, qkv, mask);
  }
  exact.grads.push_back(exact.y);
  rounded.grads.push_back(rounded.y);
  for (size_t i = 0; i < 4; ++i) {
    CHECK(close_to_scale(rounded.grads[i], exact.grads[i], 0.03));
    const double off = largest(sub(rounded.grads[i], exact.grads[i]).to_vector());
    CHECK(off > 1e-5 * largest(exact.grads[i].to_vector()));  // it was rounded
  }
}

TEST_CASE("block_attention_step: the last row of a pass, with caches in 16 bits too") {
  for (Dtype stored : {Dtype::f32, Dtype::bf16}) {
    BlockCase c{.H = 6, .G = 2, .T = 61, .d = 16, .config = {.block = 8, .chosen = 2, .tile = 4}};
    std::vector<Tensor> x = block_qkv(c, Dtype::f32);
    for (size_t i : {1, 2}) x[i] = x[i].to(stored).to(Dtype::f32);
    const BlockMask mask = mask_of(c, x);
    const Tensor whole = attended(c, x, mask).y;
    BlockMask last = mask;
    last.counts = mask.counts.slice(2, mask.tile_count() - 1, 1).contiguous();
    last.entries = mask.entries.slice(2, mask.tile_count() - 1, 1).contiguous();
    const Tensor y = block_attention_step(x[0].slice(2, 60, 1).contiguous(), x[1].to(stored),
                                          x[2].to(stored), last, Tensor::full({1}, 61, Dtype::i64));
    CHECK(close(y, whole.slice(2, 60, 1).contiguous(), 1e-5, 0));
  }
}

TEST_CASE("block_attention: 131,072 keys, rows and gradients of sampled rows") {
  const BlockCase c{.H = 1, .G = 1, .T = 131072 + 5, .d = 16, .config = {}};
  const std::vector<Tensor> x = block_qkv(c, Dtype::f32);
  const BlockMask mask = mask_of(c, x);
  // Gradients of these rows alone.
  const std::vector<int64_t> rows = {0, 33, 70000, 98303, 131071, 131076};
  const Tensor dy = Tensor::zeros(x[0].shape(), Dtype::f32), some = normal({6, 16}, 7, Dtype::f32);
  for (size_t i = 0; i < rows.size(); ++i) {
    copy_into(dy.view({c.T, 16}).slice(0, rows[i], 1), some.slice(0, int64_t(i), 1));
  }
  auto f = [&](In in) { return block_attention(in[0], in[1], in[2], mask, c.visible(), 8); };
  const Run got = run(f, x, dy);
  auto wide = [](const Tensor& t) { return t.view({t.dim(2), 16}).to(Dtype::f64); };
  const Tensor q = wide(x[0]), k = wide(x[1]), v = wide(x[2]);
  const Tensor dk = Tensor::zeros({c.T, 16}, Dtype::f64), dv = Tensor::zeros({c.T, 16}, Dtype::f64);
  for (size_t i = 0; i < rows.size(); ++i) {
    const int64_t t = rows[i], n = t / c.config.tile;
    std::vector<int64_t> keys;
    for (int32_t e = 0; e < mask.counts.data<int32_t>()[n]; ++e) {
      const int32_t entry = mask.entries.data<int32_t>()[n * mask.capacity() + e];
      const int64_t first = entry_block(entry) * c.config.block;
      for (int64_t j = first; j <= std::min(first + 31, t) && entry_row(entry) <= t % 32; ++j)
        keys.push_back(j);
    }
    auto at = [](const Tensor& m, int64_t row, int64_t col) {
      return m.data<double>()[row * 16 + col];
    };
    std::vector<double> p, dp(keys.size(), 0.0);
    double sum = 0, mean = 0;
    for (const int64_t j : keys) {
      double s = 0;
      for (int64_t d = 0; d < 16; ++d) s += at(q, t, d) * at(k, j, d);
      sum += p.emplace_back(std::exp(s / 4));
    }
    for (size_t j = 0; j < keys.size(); ++j) {
      p[j] /= sum;
      for (int64_t d = 0; d < 16; ++d)
        dp[j] += double(some.data<float>()[int64_t(i) * 16 + d]) * at(v, keys[j], d);
      mean += p[j] * dp[j];
    }
    for (int64_t d = 0; d < 16; ++d) {
      double y = 0, dq = 0;
      for (size_t j = 0; j < keys.size(); ++j) {
        const double ds = p[j] * (dp[j] - mean) / 4;
        y += p[j] * at(v, keys[j], d);
        dq += ds * at(k, keys[j], d);
        dk.data<double>()[keys[j] * 16 + d] += ds * at(q, t, d);
        dv.data<double>()[keys[j] * 16 + d] +=
            p[j] * double(some.data<float>()[int64_t(i) * 16 + d]);
      }
      CHECK(std::fabs(got.y.data<float>()[t * 16 + d] - y) < 1e-5);
      CHECK(std::fabs(got.grads[0].data<float>()[t * 16 + d] - dq) < 1e-5);
    }
  }
  CHECK(close(got.grads[1].to(Dtype::f64), dk.view(x[1].shape()), 1e-5, 0));
  CHECK(close(got.grads[2].to(Dtype::f64), dv.view(x[2].shape()), 1e-5, 0));
}

}  // namespace brine::test
