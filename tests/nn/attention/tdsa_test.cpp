// tdsa against its definition in plain loops, and its loss.
#include "tests/nn/attention/mask_check.h"

namespace brine::test {
namespace {

constexpr int64_t kRank = 5;

Block tdsa(bool causal, int64_t k) {
  return make_block("tdsa", causal, Dtype::f64, 5, 300,
                    {{"k", std::to_string(k)}, {"rank", std::to_string(kRank)}});
}

// x P W of every row of x [B, H, T, d] -> [B, H, T, r].
Numbers low_rank(const Numbers& x, const Numbers& P, const Numbers& W, const MaskCase& m) {
  Numbers y(size_t(m.B * m.H * m.T * kRank), 0);
  each_row(m, [&](int64_t b, int64_t h, int64_t t) {
    for (int64_t i = 0; i < kRank; ++i) {
      for (int64_t e = 0; e < kRank; ++e) {
        for (int64_t c = 0; c < kSize; ++c)
          y[m.index(b, h, t, i, kRank)] += x[m.index(b, h, t, c, kSize)] *
                                           P[size_t(c * kRank + e)] *
                                           W[size_t((h * kRank + e) * kRank + i)];
      }
    }
  });
  return y;
}

Numbers estimated(Block& block, const Inputs& in, const MaskCase& m) {
  Numbers P, wq, wk;
  for (const auto& b : block.module->named_buffers()) P = b.buffer->value.to_vector();
  for (const auto& p : block.module->named_parameters())
    (p.path == "query" ? wq : wk) = p.parameter->value.to_vector();
  return products(low_rank(in.q.to_vector(), P, wq, m), low_rank(in.k.to_vector(), P, wk, m), kRank,
                  m);
}

}  // namespace

TEST_CASE("tdsa attends to the keys with the largest scores of rank r") {
  for (int64_t k : {1, 5, 40}) {
    for (const MaskCase& m : rival_cases(k)) {
      INFO(m.name());
      const Inputs in = inputs(m.B, m.T, Dtype::f64);
      Block block = tdsa(m.causal, k);
      check_block(block, m, in, largest_scores(estimated(block, in, m), m));
    }
  }
}

TEST_CASE("tdsa: the matrix of signs keeps scores in the mean") {
  nn::Init init{.random = {.seed = 3}, .dtype = Dtype::f64};
  const int64_t d = 64, r = 48;
  const auto block =
      method_with("tdsa", {{"rank", std::to_string(r)}})->make(init, {.heads = 1, .head_size = d});
  const Numbers P = block->named_buffers()[0].buffer->value.to_vector();
  double square = 0, zeros = 0;
  for (double x : P) square += x * x, zeros += x == 0;
  CHECK(square / double(d) == doctest::Approx(1).epsilon(0.1));
  CHECK(zeros / double(d * r) == doctest::Approx(2.0 / 3).epsilon(0.05));
  for (double x : P) CHECK((x == 0 || std::abs(x) == doctest::Approx(std::sqrt(3.0 / r))));
}

TEST_CASE("tdsa: the loss is the squared error of the estimate, only in training") {
  for (bool causal : {true, false}) {
    const MaskCase m{.B = 2, .H = kHeads, .T = 17, .k = 4, .causal = causal, .lengths = {17, 9}};
    Block block = tdsa(causal, m.k);
    const Inputs in = inputs(m.B, m.T, Dtype::f64);
    const Numbers estimate = estimated(block, in, m),
                  exact = products(in.q.to_vector(), in.k.to_vector(), kSize, m);
    double error = 0, pairs = 0;
    each_row(m, [&](int64_t b, int64_t h, int64_t t) {
      for (int64_t j = 0; j < m.width(b, t); ++j, ++pairs) {
        const size_t at = m.index(b, h, t, j, m.T);
        error += (estimate[at] - exact[at]) * (estimate[at] - exact[at]) / double(kSize);
      }
    });
    const Trained trained = train_pass(block, in, m);
    REQUIRE(trained.loss.defined());
    CHECK(trained.loss.item() == doctest::Approx(error / pairs).epsilon(1e-10));
    check_attached_loss(block, in, m);
    nn::Tap tap("tdsa");
    pass(block, in, m.visible().lengths, {}, {}, &tap);
    CHECK_FALSE(tap.has("selection_loss"));
  }
}

}  // namespace brine::test
