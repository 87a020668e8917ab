// Attention by tiles: against slow sums, against the dense composition, over many tiles and
// threads.
#include <set>

#include "autograd/compute_type.h"
#include "autograd/ops.h"
#include "tensor/device/device.h"
#include "tensor/kernels/dense.h"
#include "tests/sparse_oracle.h"

namespace brine::test {
namespace {

using Inputs = std::vector<Tensor>;

Inputs qkv(const MaskCase& m, int64_t d, Dtype dtype = Dtype::f32, double deviation = 1) {
  const Shape shape{m.B, m.H, m.T, d};
  return {normal(shape, 1, dtype, 0, deviation), normal(shape, 2, dtype, 0, deviation),
          normal(shape, 3, dtype)};
}

Function flash(const MaskCase& m) {
  return [=](const Inputs& in) { return flash_attention(in[0], in[1], in[2], m.visible()); };
}

Function dense(const MaskCase& m) {
  return [=](const Inputs& in) {
    const double scale = 1 / std::sqrt(double(in[0].dim(3)));
    Tensor p = softmax(matmul(in[0], in[1], false, true), scale, m.visible());
    return merge_heads(matmul(p, in[2]));
  };
}

// P V row by row, heads concatenated.
std::vector<double> slow_sums(const Inputs& in, const MaskCase& m) {
  const int64_t d = in[0].dim(3);
  const std::vector<double> p = naive_attention(in[0].to_vector(), in[1].to_vector(), {}, d, m);
  return naive_products(p, in[2].to_vector(), d, m, true);
}

void check_equal(const Run& a, const Run& b, double tolerance) {
  CHECK(close_to_scale(a.y, b.y, tolerance, "output"));
  for (size_t i = 0; i < 3; ++i) {
    CHECK(close_to_scale(a.grads[i], b.grads[i], tolerance, join("gradient of ", "qkv"[i])));
  }
}

void check_bits(const Run& a, const Run& b) {
  CHECK(same_bits(a.y, b.y));
  for (size_t i = 0; i < 3; ++i) CHECK(same_bits(a.grads[i], b.grads[i]));
}

}  // namespace

TEST_CASE("flash attention equals slow sums, with its gradients") {
  for (const MaskCase& m : std::vector<MaskCase>{
           {.B = 2, .H = 3, .T = 37, .lengths = {37, 30}},
           {.B = 3, .H = 1, .T = 21, .lengths = {0, 21, 1}},
           {.B = 2, .H = 2, .T = 24, .causal = false, .lengths = {24, 17}},
           {.B = 1, .H = 2, .T = 33, .causal = false},
       }) {
    for (int64_t d : {1, 5, 16}) {
      check_op({.name = join("flash d ", d, " ", m.name()),
                .inputs = qkv(m, d),
                .f = flash(m),
                .oracle = [=](const Inputs& in) { return slow_sums(in, m); }});
    }
  }
}

TEST_CASE("flash attention equals dense attention over many tiles, values and gradients") {
  for (const MaskCase& m : std::vector<MaskCase>{
           {.B = 1, .H = 3, .T = 63},
           {.B = 1, .H = 1, .T = 64},
           {.B = 1, .H = 2, .T = 65, .causal = false},
           {.B = 2, .H = 2, .T = 257, .lengths = {193, 257}},
           {.B = 3, .H = 1, .T = 391, .causal = false, .lengths = {391, 97, 128}},
           {.B = 1, .H = 1, .T = 1100},  // dq in several pieces
           {.B = 1, .H = 1, .T = 1100, .causal = false, .lengths = {1001}},
       }) {
    for (int64_t d : {24, 64}) {
      INFO(m.name() << " d " << d);
      for (Dtype type : {Dtype::f32, Dtype::f64}) {
        const Inputs in = qkv(m, d, type);
        const Tensor dy = normal({m.B, m.T, m.H * d}, 4, type);
        check_equal(run(flash(m), in, dy), run(dense(m), in, dy),
                    type == Dtype::f32 ? 1e-5 : 1e-12);
      }
    }
  }
}

TEST_CASE("flash attention of shared keys equals that of a copy for every head, with gradients") {
  for (const MaskCase& m : std::vector<MaskCase>{
           {.B = 2, .H = 4, .T = 37, .lengths = {37, 30}},
           {.B = 2, .H = 6, .T = 200, .causal = false, .lengths = {200, 131}},
           {.B = 1, .H = 2, .T = 1100},  // dq in several pieces
       }) {
    for (int64_t G : std::set<int64_t>{1, m.H / 2}) {
      INFO(m.name() << " groups " << G);
      for (Dtype type : {Dtype::f32, Dtype::f64}) {
        const Shape keys{m.B, G, m.T, 24};
        const Inputs in = {normal({m.B, m.H, m.T, 24}, 1, type), normal(keys, 2, type),
                           normal(keys, 3, type)};
        const Tensor dy = normal({m.B, m.T, m.H * 24}, 4, type);
        auto copied = [&](const Inputs& x) {
          return dense(m)({x[0], repeat_heads(x[1], m.H / G), repeat_heads(x[2], m.H / G)});
        };
        const Run shared = run(flash(m), in, dy);
        check_equal(shared, run(copied, in, dy), type == Dtype::f32 ? 1e-5 : 1e-12);
        for (int n : {1, 3}) {
          Threads set(n);
          check_bits(run(flash(m), in, dy), shared);
        }
      }
    }
  }
}

TEST_CASE("flash attention of a single key is its value") {
  const MaskCase m{.B = 2, .H = 2, .T = 1};
  for (Dtype type : {Dtype::f32, Dtype::f64}) {
    const Inputs in = qkv(m, 24, type);
    const Tensor dy = normal({2, 1, 48}, 4, type);
    const Run r = run(flash(m), in, dy);
    CHECK(close_to_scale(r.y, merge_heads(in[2]), 1e-6));
    CHECK(close_to_scale(merge_heads(r.grads[2]), dy, 1e-6));
    CHECK(largest(r.grads[0].to_vector()) < 1e-6);  // nothing to choose between
    CHECK(largest(r.grads[1].to_vector()) < 1e-6);
  }
}

TEST_CASE("flash attention by the kernels for every CPU, and by those for AVX-512") {
  const MaskCase m{.B = 2, .H = 1, .T = 201, .lengths = {201, 77}};
  for (Dtype type : {Dtype::f32, Dtype::f64}) {
    const Inputs in = qkv(m, 40, type);
    const Tensor dy = normal({m.B, m.T, 40}, 4, type);
    const Run expected = run(dense(m), in, dy);
    for (bool avx512 : {false, true}) {  // one and the same where only one is compiled
      const bool before = allow_avx512_kernels(avx512);
      const Run r = run(flash(m), in, dy);
      allow_avx512_kernels(before);
      check_equal(r, expected, type == Dtype::f32 ? 1e-5 : 1e-12);
    }
  }
}

TEST_CASE("flash attention has the same bits with any number of threads") {
  for (bool causal : {true, false}) {
    const MaskCase m{.B = 2, .H = 2, .T = 777, .causal = causal, .lengths = {701, 777}};
    const Inputs in = qkv(m, 40);
    const Tensor dy = normal({m.B, m.T, m.H * 40}, 4);
    const Run first = run(flash(m), in, dy);
    for (int n : {1, 2, 3}) {
      Threads set(n);
      check_bits(run(flash(m), in, dy), first);
    }
  }
}

TEST_CASE("flash attention reads nothing beyond a sequence's length, in bf16 neither") {
  for (Dtype type : {Dtype::f32, Dtype::bf16}) {
    for (bool causal : {true, false}) {
      for (int64_t d : {16, 32}) {
        const MaskCase m{.B = 2, .H = 2, .T = 131, .causal = causal, .lengths = {131 - d, 77}};
        Inputs clean = qkv(m, d), dirty = qkv(m, d);
        Tensor dy = normal({m.B, m.T, m.H * d}, 4), dirty_dy = dy.clone();
        for (int64_t b = 0; b < m.B; ++b) {
          const int64_t L = m.length(b);
          for (Tensor& x : dirty) fill(x.slice(0, b, 1).slice(2, L, m.T - L), double(NAN));
          fill(dirty_dy.slice(0, b, 1).slice(1, L, m.T - L), double(NAN));
        }
        const ComputeType compute(type);
        check_bits(run(flash(m), dirty, dirty_dy), run(flash(m), clean, dy));
      }
    }
  }
}

TEST_CASE("flash attention of huge and of growing scores") {
  for (double deviation : {1e-3, 30.0, 1e3}) {
    const MaskCase m{.B = 1, .H = 2, .T = 230};
    const Inputs in = to_dtype(qkv(m, 8, Dtype::f32, deviation), Dtype::f64);
    const Tensor dy = normal({m.B, m.T, m.H * 8}, 4, Dtype::f64);
    // Scores of size s have an error of s 2^-53, and so do their exponentials.
    const double size = std::max(1.0, deviation * deviation);
    check_equal(run(flash(m), in, dy), run(dense(m), in, dy), 1e-14 * size + 1e-12);
  }
  // Every key is worth more than all before it together: each tile moves the maximum.
  const int64_t T = 300;
  Tensor q = Tensor::full({1, 1, T, 1}, 1), k = Tensor::empty({1, 1, T, 1});
  for (int64_t t = 0; t < T; ++t) k.data<float>()[t] = float(40 * t);
  Tensor v = normal({1, 1, T, 1}, 5);
  Tensor y = flash_attention(q, k, v, {});
  CHECK(close(y.to_vector(), v.to_vector(), 0, 0));
}

TEST_CASE("a NaN spoils the rows that see it and no other") {
  const MaskCase m{.B = 1, .H = 2, .T = 200};
  Inputs in = qkv(m, 8);
  in[0].data<float>()[70 * 8] = NAN;               // query 70 of head 0
  in[1].data<float>()[(m.T + 150) * 8 + 3] = NAN;  // key 150 of head 1
  const Tensor y = flash(m)(in);
  const std::vector<double> values = y.to_vector();
  for (int64_t t = 0; t < m.T; ++t) {
    for (int64_t c = 0; c < 16; ++c) {
      CHECK(std::isnan(values[size_t(t * 16 + c)]) == (c < 8 ? t == 70 : t >= 150));
    }
  }
}

TEST_CASE("bf16 compute: flash attention of rounded inputs, with its gradients") {
  for (const MaskCase& m : std::vector<MaskCase>{
           {.B = 1, .H = 2, .T = 2, .causal = false},
           {.B = 2, .H = 4, .T = 63, .lengths = {63, 30}},
           {.B = 1, .H = 2, .T = 65, .causal = false},
           {.B = 2, .H = 2, .T = 257, .lengths = {193, 257}},
           {.B = 3, .H = 2, .T = 391, .causal = false, .lengths = {391, 97, 0}},
           {.B = 1, .H = 1, .T = 1100},  // dq in several pieces
       }) {
    for (int64_t d : {16, 24, 64, 80}) {  // of 24 numbers: not in pairs
      INFO(m.name() << " d " << d);
      Inputs in = qkv(m, d);
      // Groups of two heads where there are more.
      if (m.H > 1) {
        for (size_t i : {1, 2}) in[i] = normal({m.B, m.H / 2, m.T, d}, 1 + i);
      }
      for (Tensor& x : in) x = x.to(Dtype::bf16).to(Dtype::f32);
      const Tensor dy = normal({m.B, m.T, m.H * d}, 4).to(Dtype::bf16).to(Dtype::f32);
      const Run exact = run(flash(m), in, dy);
      const ComputeType compute(Dtype::bf16);
      const Run rounded = run(flash(m), in, dy);
      // Probabilities and the gradients of scores have 8 bits; errors of many keys average out.
      check_equal(rounded, exact, 1e-2);
      for (int n : {1, 2, 3}) {
        Threads set(n);
        check_bits(run(flash(m), in, dy), rounded);
      }
    }
  }
}

TEST_CASE("bf16 compute: gradients of scores where values have much in common") {
  const MaskCase m{.B = 1, .H = 2, .T = 130};
  Inputs in = qkv(m, 64);
  in[2] = normal({1, 2, 130, 64}, 3, Dtype::f32, 8);  // far from 0: the gradients are differences
  for (Tensor& x : in) x = x.to(Dtype::bf16).to(Dtype::f32);
  const Tensor dy = normal({1, 130, 128}, 4);  // which is rounded
  const Run exact = run(flash(m), in, dy);
  const ComputeType compute(Dtype::bf16);
  check_equal(run(flash(m), in, dy), exact, 2e-2);
}

TEST_CASE("bf16 compute: flash attention of queries that see one key each is its value, exactly") {
  const int64_t T = 79, d = 80;
  Tensor q = Tensor::zeros({1, 1, T, d}), k = Tensor::zeros({1, 1, T, d});
  for (int64_t t = 0; t < T; ++t) {
    q.data<float>()[t * d + t] = 256;
    k.data<float>()[t * d + t] = 256;
  }
  const Tensor v = normal({1, 1, T, d}, 5).to(Dtype::bf16).to(Dtype::f32);
  const ComputeType compute(Dtype::bf16);
  for (bool causal : {true, false}) {
    CHECK(flash_attention(q, k, v, {.causal = causal}).to_vector() == v.to_vector());
  }
}

TEST_CASE("flash attention refuses what does not fit") {
  Tensor x = normal({1, 2, 9, 4}, 1);
  CHECK_THROWS_AS(flash_attention(x, x, normal({1, 2, 8, 4}, 1), {}), Error);
  CHECK_THROWS_AS(flash_attention(x, x.to(Dtype::f64), x, {}), Error);
  CHECK_THROWS_AS(flash_attention(x, normal({1, 3, 9, 4}, 1), normal({1, 3, 9, 4}, 1), {}), Error);
  CHECK_THROWS_AS(flash_attention(x, normal({1, 1, 9, 4}, 1), x, {}), Error);
  CHECK_THROWS_AS(flash_attention(normal({2, 9, 4}, 1), x, x, {}), Error);
  CHECK_THROWS_AS(flash_attention(x, x, x, {true, Tensor::from(std::vector<int64_t>{10}, {1})}),
                  Error);
}

}  // namespace brine::test
