// The Synthesizer's three forms against their definition.
#include "tests/nn/attention/definition.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

constexpr int64_t kSynthesizerPositions = 40;

Tensor parameter(nn::Attention& block, const std::string& path) {
  for (const auto& p : block.named_parameters()) {
    if (p.path == path) return p.parameter->value;
  }
  FAIL("no parameter " << path);
  return {};
}

// exp of the scores of the dense form.
PairWeight dense_weight(const AttentionCase& c, nn::Attention& block, const Tensor& queries) {
  const Array q(queries), w1(parameter(block, "hidden.weight")),
      w2(parameter(block, "positions.weight"));
  const std::vector<double> b1 = parameter(block, "hidden.bias").to_vector(),
                            b2 = parameter(block, "positions.bias").to_vector();
  return [=](int64_t b, int64_t h, int64_t t, int64_t j) {
    double score = b2[size_t(j)];
    for (size_t n = 0; n < b1.size(); ++n) {
      double x = b1[n];
      for (int64_t i = 0; i < c.d; ++i) x += w1(int64_t(n), i) * q(b, h, t, i);
      score += w2(j, int64_t(n)) * std::max(x, 0.0);
    }
    return std::exp(score);
  };
}

PairWeight table_weight(nn::Attention& block) {
  return [table = Array(parameter(block, "table"))](int64_t, int64_t, int64_t t, int64_t j) {
    return std::exp(table(t, j));
  };
}

PairWeight factorized_weight(nn::Attention& block, int64_t rank) {
  return [=, a = Array(parameter(block, "rows")), b = Array(parameter(block, "columns"))](
             int64_t, int64_t, int64_t t, int64_t j) {
    double score = 0;
    for (int64_t i = 0; i < rank; ++i) score += a(t, i) * b(j, i);
    return std::exp(score);
  };
}

}  // namespace

TEST_CASE("synthesizer: scores of queries, of a table and of a table of low rank") {
  for (const AttentionCase& c : attention_cases()) {
    INFO(c.name());
    const nn::AttentionInput in = c.input();
    auto check_form = [&](nn::Attention& block, const PairWeight& weight) {
      CHECK(close(block.forward(in).to_vector(), attention_by(c, in.v, weight), 1e-12, 1e-11));
    };
    const auto dense = c.make("synthesizer", {{"hidden", "7"}}, kSynthesizerPositions);
    const auto table = c.make("synthesizer", {{"scores", "random"}}, kSynthesizerPositions);
    const auto thin =
        c.make("synthesizer", {{"scores", "factorized"}, {"rank", "3"}}, kSynthesizerPositions);
    CHECK(parameter(*dense, "positions.weight").shape() == Shape{kSynthesizerPositions, 7});
    CHECK(parameter(*table, "table").shape() ==
          Shape{kSynthesizerPositions, kSynthesizerPositions});
    CHECK(parameter(*thin, "columns").shape() == Shape{kSynthesizerPositions, 3});
    for (const char* bias : {"hidden.bias", "positions.bias"}) {
      const Tensor value = parameter(*dense, bias);
      assign(value, normal(value.shape(), 9, Dtype::f64));
    }
    check_form(*dense, dense_weight(c, *dense, in.q));
    check_form(*table, table_weight(*table));
    check_form(*thin, factorized_weight(*thin, 3));
  }
}

TEST_CASE("synthesizer: maps lose a share of their weights in training only") {
  const AttentionCase c{.B = 16, .T = 5};
  const nn::AttentionInput in = c.input();
  for (const char* scores : {"dense", "random"}) {
    const auto block =
        c.make("synthesizer", {{"scores", scores}, {"dropout", "0.5"}}, kSynthesizerPositions);
    const auto whole =
        c.make("synthesizer", {{"scores", scores}, {"dropout", "0"}}, kSynthesizerPositions);
    RandomStream random{.seed = 4};
    nn::AttentionInput training = in;
    training.random = &random;
    const Tensor y = block->forward(in);
    CHECK(same_bits(y, whole->forward(in)));
    CHECK(same_bits(y, whole->forward(training)));
    // The first query sees one key: its weight is lost, or doubled.
    const Array dropped(split_heads(block->forward(training), c.H)), kept(split_heads(y, c.H));
    int64_t lost = 0;
    for (int64_t b = 0; b < c.B; ++b) {
      for (int64_t h = 0; h < c.H; ++h) {
        const double factor = dropped(b, h, 0, 0) / kept(b, h, 0, 0);
        CHECK((factor == 0 || factor == doctest::Approx(2)));
        lost += factor == 0;
      }
    }
    CHECK((lost > 0 && lost < c.B * c.H));
  }
}

TEST_CASE("synthesizer: more tokens than positions are refused") {
  const AttentionCase c{.T = 41};
  CHECK_REFUSES(c.make("synthesizer", {}, kSynthesizerPositions)->forward(c.input()), "synthesizer",
                "41", "40");
}

}  // namespace brine::test
