// Linear attention against naive f64 sums, its gradients, and its steps against the whole pass.
#include "autograd/ops.h"
#include "tests/estimator_oracle.h"
#include "tests/head_copies.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

// Linear attention by its definition, one key at a time.
Values naive_attention(const Tensor& q, const Tensor& k, const Tensor& identity, const Tensor& v,
                       bool causal, const std::vector<int64_t>& lengths, double eps) {
  const int64_t B = q.dim(0), H = q.dim(1), T = q.dim(2), m = q.dim(3), d = v.dim(3);
  const int64_t i = identity.defined() ? identity.dim(-1) : 0, e = i + d;
  Values pq = q.to_vector(), pk = k.to_vector(), pv = v.to_vector(), pi;
  if (i) pi = identity.to_vector();
  Values y(size_t(B * H * T * e), 0.0);
  for (int64_t n = 0; n < B * H; ++n) {
    const int64_t b = n / H, L = lengths.empty() ? T : lengths[size_t(b)];
    for (int64_t t = 0; t < T; ++t) {
      double below = 0;
      double* out = &y[size_t((n * T + t) * e)];
      for (int64_t j = 0; j < m && t < L; ++j) below += eps * pq[size_t((n * T + t) * m + j)];
      for (int64_t s = 0; s < width(causal, L, t); ++s) {
        double weight = 0;
        for (int64_t j = 0; j < m; ++j) {
          weight += pq[size_t((n * T + t) * m + j)] * pk[size_t((n * T + s) * m + j)];
        }
        below += weight;
        const int64_t row = identity.defined() && identity.rank() == 3 ? b * T + s : s;
        for (int64_t c = 0; c < i; ++c) out[c] += weight * pi[size_t(row * i + c)];
        for (int64_t c = 0; c < d; ++c) out[i + c] += weight * pv[size_t((n * T + s) * d + c)];
      }
      for (int64_t c = 0; c < e && t < L; ++c) out[c] /= below;
    }
  }
  return y;
}

// G: of heads that share keys and values; 0: one for every head.
void check_attention(const EstimatorSizes& s, int64_t i, bool causal,
                     const std::vector<int64_t>& lengths, double grad_tolerance, int64_t G = 0) {
  const int64_t groups = G ? G : s.H;
  const Visibility visible{.causal = causal, .lengths = lengths_of(lengths)};
  const double eps = 1e-3;
  std::vector<Tensor> inputs = {uniform({s.B, s.H, s.T, s.m}, 1, 0.05, 1),
                                uniform({s.B, groups, s.T, s.m}, 2, 0.05, 1),
                                normal({s.B, groups, s.T, s.d}, 3)};
  if (i) inputs.push_back(normal({s.T + 2, i}, 4));
  auto identity = [=](In x) { return i ? x[3] : Tensor(); };
  check_op(
      {.name = join("linear_attention T=", s.T, " i=", i, " G=", G, causal ? " causal" : ""),
       .inputs = inputs,
       .f = [=](In x) { return linear_attention(x[0], x[1], identity(x), x[2], visible, eps); },
       .oracle =
           [=](In x) {
             return naive_attention(x[0], copied_heads(x[1], s.H), identity(x),
                                    copied_heads(x[2], s.H), causal, lengths, eps);
           },
       // One token's gradients come from eps alone: large numbers cancel.
       .tolerance = s.T == 1 ? 1e-3 : 1e-5,
       .grad_tolerance = grad_tolerance});
}

}  // namespace

TEST_CASE("linear_attention: causal, odd lengths, with and without an identity table") {
  for (int64_t T : {1, 3, 17, 33, 64, 65, 257}) {
    check_attention({1, 2, T, 5, 3}, 4, true, {}, T < 70 ? 1e-6 : 0);
  }
  check_attention({2, 2, 130, 3, 4}, 0, true, {130, 65}, 1e-6);
  check_attention({3, 1, 33, 4, 3}, 3, true, {33, 0, 1}, 1e-6);
}

TEST_CASE("linear_attention: bidirectional") {
  for (int64_t T : {1, 17, 65}) check_attention({1, 2, T, 5, 3}, 4, false, {}, 1e-6);
  check_attention({3, 2, 67, 4, 3}, 2, false, {67, 64, 0}, 1e-6);
}

TEST_CASE("linear_attention: heads of a group share keys and values, whose gradients are summed") {
  for (int64_t G : {1, 2, 3}) {
    check_attention({2, 6, 65, 4, 3}, 2, true, {65, 7}, 1e-6, G);
    check_attention({2, 6, 9, 4, 3}, 2, true, {}, 1e-6, G);
    check_attention({2, 6, 67, 4, 3}, 2, false, {67, 0}, 1e-6, G);
  }
}

TEST_CASE("linear_attention: an identity for each sequence") {
  const Visibility visible{.causal = false, .lengths = lengths_of({9, 4})};
  const Tensor identity = normal({2, 9, 3}, 8);
  check_op(
      {.name = "identity [B, T, i]",
       .inputs = {uniform({2, 2, 9, 4}, 1, 0.1, 1), uniform({2, 2, 9, 4}, 2, 0.1, 1),
                  normal({2, 2, 9, 3}, 3)},
       .f =
           [=](In x) {
             return linear_attention(x[0], x[1], beside(identity, x[0]), x[2], visible);
           },
       .oracle =
           [=](In x) {
             return naive_attention(x[0], x[1], identity.to(Dtype::f64), x[2], false, {9, 4}, 1e-6);
           }});
}

TEST_CASE("linear_attention: later tokens change nothing earlier, bit for bit") {
  const int64_t T = 150, cut = 70;
  Tensor q = uniform({1, 2, T, 6}, 1, 0, 1), k = uniform({1, 2, T, 6}, 2, 0, 1);
  Tensor v = normal({1, 2, T, 5}, 3), id = normal({T, 4}, 4);
  Tensor y = linear_attention(q, k, id, v, {});
  for (Tensor* x : {&q, &k, &v}) {
    *x = x->clone();
    for (int64_t h = 0; h < 2; ++h) {
      float* row = x->data<float>() + (h * T + cut) * x->dim(3);
      std::fill(row, row + (T - cut) * x->dim(3), 2.5f);
    }
  }
  Tensor z = linear_attention(q, k, id, v, {});
  CHECK(same_bits(y.slice(2, 0, cut), z.slice(2, 0, cut)));
  CHECK_FALSE(same_bits(y.slice(2, cut, 1), z.slice(2, cut, 1)));
}

TEST_CASE("linear_attention: refusals") {
  Tensor phi = uniform({1, 1, 4, 3}, 1, 0, 1), v = normal({1, 1, 4, 2}, 2);
  CHECK_THROWS_WITH(linear_attention(phi, phi, normal({3, 2}, 3), v, {}),
                    "linear_attention: 4 tokens, but the table has 3 positions");
  CHECK_THROWS_AS(linear_attention(phi, phi, {}, normal({1, 1, 5, 2}, 2), {}), Error);
  CHECK_THROWS_AS(linear_attention(phi, phi, {}, v.to(Dtype::f64), {}), Error);
  const Tensor six = uniform({1, 6, 4, 3}, 1, 0, 1), four = uniform({1, 4, 4, 3}, 1, 0, 1);
  CHECK_REFUSES(linear_attention(six, four, {}, normal({1, 4, 4, 2}, 2), {}), "linear_attention",
                "phi_k", "[1, 6, 4, 3]", "[1, 4, 4, 3]");
  const Tensor two = uniform({1, 2, 4, 3}, 1, 0, 1);
  CHECK_REFUSES(linear_attention(six, two, {}, normal({1, 6, 4, 2}, 2), {}), "linear_attention",
                "v", "[1, 2, 4, d]", "[1, 6, 4, 2]");
}

namespace {

// Decoding with G groups of H heads, d values and i columns of a table of positions: prompts, then
// ten steps.
void check_steps(int64_t H, int64_t G, int64_t d, int64_t i = 4) {
  const int64_t B = 2, T = 60, m = 5;
  for (Dtype type : {Dtype::f32, Dtype::f64}) {
    const Tensor q = uniform({B, H, T, m}, 1, 0.05, 1, type), v = normal({B, G, T, d}, 3, type);
    const Tensor k = uniform({B, G, T, m}, 2, 0.05, 1, type),
                 table = i ? normal({T + 1, i}, 4, type) : Tensor();
    const Tensor full = linear_attention(q, k, table, v, {}, 1e-3);
    Tensor state = Tensor::empty({B, G, m, i + d}, type),
           sums = Tensor::empty({B, G, m}, Dtype::f64);
    std::vector<int64_t> at = {49, i ? 7 : 0};  // tokens of each prompt
    linear_attention_state(state, sums, k, table, v, {true, Tensor::from(at, {B})});
    for (int step = 0; step < 10; ++step) {
      const Tensor y = linear_attention_step(state, sums, rows_at(q, at), rows_at(k, at), table,
                                             rows_at(v, at), Tensor::from(at, {B}), 1e-3);
      CHECK(close_to_scale(y, rows_at(full, at), type == Dtype::f64 ? 1e-12 : 1e-5));
      for (int64_t& position : at) ++position;
    }
    if (!i) continue;
    at[1] = T + 1;
    CHECK_REFUSES(linear_attention_step(state, sums, rows_at(q, {0, 0}), rows_at(k, {0, 0}), table,
                                        rows_at(v, {0, 0}), Tensor::from(at, {B}), 1e-3),
                  "linear_attention_step", "61", "sequence 1", "0..60");
  }
}

}  // namespace

TEST_CASE("linear_attention_state and its steps give the rows of the causal pass") {
  check_steps(2, 2, 3);
}

TEST_CASE("linear_attention_state and its steps without a table of positions") {
  check_steps(4, 2, 3, 0);
}

TEST_CASE("linear_attention_state and its steps with groups of heads") {
  for (int64_t G : {1, 2, 3}) check_steps(6, G, 40);
}

}  // namespace brine::test
