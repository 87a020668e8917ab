// Attention on the entries of a mask against dense attention under that mask.
#include "autograd/compute_type.h"
#include "autograd/ops.h"
#include "tests/head_copies.h"
#include "tests/refusals.h"
#include "tests/sparse_oracle.h"

namespace brine::test {
namespace {

FlatCsr random_csr(const MaskCase& m, uint64_t seed = 41) {
  Tensor x = uniform({m.B, m.H, m.T, m.K}, seed, 0, 1);
  return build_csr(select_columns(x, m.visible(), m.config()).selected, m.visible(), m.k);
}

// Attention under the mask, and its gradients, with keys and values of G heads.
void check_sparse(const MaskCase& m, const FlatCsr& csr, int64_t d, int64_t G) {
  const Shape keys{m.B, G, m.T, d};
  const std::vector<double> mask = csr_to_mask(csr).to_vector();
  check_op({.name = join("sparse_attention G ", G, " d ", d, " ", m.name()),
            .inputs = {normal({m.B, m.H, m.T, d}, 1), normal(keys, 2), normal(keys, 3)},
            .f =
                [=](In in) {
                  return sparse_attention(in[0], in[1], in[2], mask_on(in[0].device(), csr));
                },
            .oracle =
                [=](In in) {
                  const Tensor k = copied_heads(in[1], m.H), v = copied_heads(in[2], m.H);
                  const auto p = naive_attention(in[0].to_vector(), k.to_vector(), mask, d, m);
                  return naive_products(p, v.to_vector(), d, m, false);
                },
            .grad_tolerance = d < 40 ? 1e-6 : 0});
}

std::vector<Tensor> masked_qkv(const MaskCase& m, int64_t d) {
  Shape shape{m.B, m.H, m.T, d};
  return {normal(shape, 1), normal(shape, 2), normal(shape, 3)};
}

}  // namespace

TEST_CASE("sparse attention equals dense attention under the same mask, with its gradients") {
  for (const MaskCase& m : mask_cases()) check_sparse(m, random_csr(m), 6, m.H);
}

TEST_CASE("sparse attention of groups of heads, whose keys and values get the sum of gradients") {
  const std::vector<MaskCase> cases = {
      {.B = 2, .H = 6, .T = 21, .K = 8, .k = 5, .lengths = {21, 13}},
      {.B = 1, .H = 6, .T = 33, .K = 4, .k = 2},
      {.B = 3, .H = 6, .T = 17, .K = 8, .k = 4, .causal = false, .lengths = {0, 17, 9}}};
  for (const MaskCase& m : cases) {
    for (int64_t G : {1, 2, 3}) {
      for (int64_t d : {6, 64}) check_sparse(m, random_csr(m), d, G);
    }
  }
}

TEST_CASE("sparse attention refuses groups that do not divide the heads") {
  const MaskCase m{.B = 1, .H = 6, .T = 9, .K = 4, .k = 2};
  const FlatCsr csr = random_csr(m);
  const Tensor q = normal({1, 6, 9, 4}, 1), four = normal({1, 4, 9, 4}, 2);
  CHECK_REFUSES(sparse_attention(q, four, four, csr), "sparse_attention", "[1, 6, 9, 4]",
                "[1, 4, 9, 4]", "6 heads");
  const Tensor two = normal({1, 2, 9, 4}, 2), three = normal({1, 3, 9, 4}, 2);
  CHECK_REFUSES(sparse_attention(q, two, three, csr), "sparse_attention", "v", "[1, 2, 9, 4]",
                "[1, 3, 9, 4]");
}

TEST_CASE("sparse attention for every kind of head size") {
  MaskCase m{.B = 1, .H = 2, .T = 33, .K = 8, .k = 4};
  for (int64_t d : {1, 3, 8, 31, 32, 33, 64, 80, 100, 128, 200}) {
    check_sparse(m, random_csr(m), d, m.H);
  }
}

TEST_CASE("more pieces of keys than heads give the same bits") {
  MaskCase m{.B = 1, .H = 2, .T = 2100, .K = 16, .k = 8};
  FlatCsr csr = random_csr(m);
  std::vector<Tensor> in = masked_qkv(m, 32);
  for (size_t i : {1, 2}) in[i] = in[i].slice(1, 0, 1).contiguous();  // both heads in one group
  auto f = [=](In x) { return sparse_attention(x[0], x[1], x[2], csr); };
  Tensor dy = normal(in[0].shape(), 9);
  std::vector<Run> runs;
  for (int n : {1, 2, 3}) {
    Threads set(n);
    runs.push_back(run(f, in, dy));
  }
  for (size_t i = 0; i < 3; ++i) {
    CHECK(same_bits(runs[1].grads[i], runs[0].grads[i]));
    CHECK(same_bits(runs[2].grads[i], runs[0].grads[i]));
  }
}

TEST_CASE("a head without entries gives 0 and gets no gradient; probabilities are returned") {
  MaskCase m{.B = 1, .H = 4, .T = 61, .K = 4, .k = 2};
  Tensor estimate = Tensor::zeros({1, 4, 61, 4});
  // Head 2 wins every column of every row, head 0 gets none after the first rows.
  std::fill_n(estimate.data<float>() + 2 * 61 * 4, 61 * 4, 1.0f);
  FlatCsr csr = build_csr(select_columns(estimate, {}, m.config()).selected, {}, m.k);
  std::vector<Tensor> in = masked_qkv(m, 8);
  Tensor p;
  Tensor q = require_grad(in[0]);
  Tensor y = sparse_attention(q, in[1], in[2], csr, &p);
  CHECK(p.shape() == Shape{csr.entries()});
  backward(y, normal(y.shape(), 4));
  std::vector<double> offsets = csr.head_offsets.to_vector(), out = y.to_vector();
  std::vector<double> dq = grad(q).to_vector(), prob = p.to_vector();
  int64_t empty = 0;
  for (int64_t t = 0; t < m.T; ++t) {
    const double* row = offsets.data() + t * 5;
    for (int64_t h = 0; h < m.H; ++h) {
      double sum = 0;
      auto first = int64_t(csr.row_pointers.to_vector()[size_t(t)]);
      for (auto e = int64_t(row[h]); e < int64_t(row[h + 1]); ++e) sum += prob[size_t(first + e)];
      if (row[h + 1] > row[h]) {
        CHECK(sum == doctest::Approx(1).epsilon(1e-5));
        continue;
      }
      ++empty;
      for (int64_t c = 0; c < 8; ++c) {
        CHECK(out[m.index(0, h, t, c, 8)] == 0);
        CHECK(dq[m.index(0, h, t, c, 8)] == 0);
      }
    }
  }
  CHECK(empty > 100);
}

TEST_CASE("a few rows that face all keys equal the rows of the full pass, in groups of heads too") {
  const MaskCase m{.B = 2, .H = 4, .T = 23, .K = 8, .k = 3};
  const Tensor estimate = uniform({m.B, m.H, m.T, m.K}, 8, 0, 1), q = normal({2, 4, 23, 32}, 1);
  for (int64_t G : {4, 2}) {
    const Tensor k = normal({2, G, 23, 32}, 2), v = normal(k.shape(), 3);
    const Tensor full = sparse_attention(q, k, v, random_csr(m, 8));
    for (int64_t t : {0, 9, 22}) {
      const Visibility visible{false, Tensor::from(std::vector<int64_t>{t + 1, t + 1}, {2})};
      const Selection chosen = select_columns(estimate.slice(2, t, 1), visible, m.config());
      const FlatCsr csr = build_csr(chosen.selected, visible, m.k, m.T);
      const Tensor row = sparse_attention(q.slice(2, t, 1), k, v, csr);
      CHECK(same_bits(row, full.slice(2, t, 1).contiguous()));
    }
  }
}

TEST_CASE("bf16 compute: sparse attention of the CPU gathers rows as they are") {
  const MaskCase m{.B = 2, .H = 2, .T = 70, .K = 16, .k = 9, .lengths = {70, 41}};
  const FlatCsr csr = random_csr(m);
  const std::vector<Tensor> in = masked_qkv(m, 32);
  const Tensor dy = normal(in[0].shape(), 7);
  auto f = [=](In x) { return sparse_attention(x[0], x[1], x[2], csr); };
  const Run plain = run(f, in, dy);
  const ComputeType compute(Dtype::bf16);
  const Run got = run(f, in, dy);
  CHECK(same_bits(got.y, plain.y));
  for (size_t i = 0; i < 3; ++i) CHECK(same_bits(got.grads[i], plain.grads[i]));
}

TEST_CASE("sparse attention on keys and values in 16 bits is that on their values in f32") {
  const MaskCase m{.B = 2, .H = 4, .T = 29, .K = 8, .k = 4};
  const FlatCsr csr = random_csr(m);
  for (Dtype type : {Dtype::bf16, Dtype::f16}) {
    for (int64_t d : {5, 64}) {
      const Tensor q = normal({2, 4, 29, d}, 1), k = normal({2, 2, 29, d}, 2).to(type),
                   v = normal({2, 2, 29, d}, 3).to(type);
      const Tensor y = sparse_attention(q, k, v, csr),
                   wanted = sparse_attention(q, k.to(Dtype::f32), v.to(Dtype::f32), csr);
      CHECK((d == 64 ? same_bits(y, wanted) : close_to_scale(y, wanted, 1e-6)));
      const Tensor leaf = require_grad(q, Tensor::zeros_like(q));
      CHECK_REFUSES(sparse_attention(leaf, k, v, csr), "sparse_attention", "no gradients", "f32");
    }
  }
}

TEST_CASE("sparse_attention refuses shapes that do not fit") {
  MaskCase m{.B = 1, .H = 2, .T = 9, .K = 4, .k = 3};
  FlatCsr csr = random_csr(m);
  Tensor x = normal({1, 2, 9, 4}, 1), wrong = normal({1, 2, 8, 4}, 1);
  CHECK_THROWS_AS(sparse_attention(wrong, x, x, csr), Error);
  CHECK_THROWS_AS(sparse_attention(x, wrong, wrong, csr), Error);
  CHECK_THROWS_AS(sparse_attention(x, x, wrong, csr), Error);
  CHECK_THROWS_AS(sparse_attention(x, x.to(Dtype::f64), x.to(Dtype::f64), csr), Error);
}

}  // namespace brine::test
