// Perplexity by windows and by strides against a sum over single tokens, each from a pass
// over its context alone.
#include "distill/evaluation/evaluate.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "distill/evaluation/recall_observer.h"
#include "tests/distill/setup.h"
#include "tests/messages.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

std::vector<int32_t> some_tokens(int64_t n) {
  Tensor t = ids({n}, 5, 37);
  return {t.data<int32_t>(), t.data<int32_t>() + n};
}

// -log p(tokens[at] | tokens[begin .. at)), in f64 from the last row of logits.
double surprise(nn::Model& model, const std::vector<int32_t>& tokens, int64_t begin, int64_t at) {
  NoGrad off;
  Tensor ids = Tensor::empty({1, at - begin}, Dtype::i32);
  std::copy(tokens.begin() + begin, tokens.begin() + at, ids.data<int32_t>());
  const Tensor logits = model.logits(model.hidden({.ids = ids}));
  const int64_t V = logits.dim(-1);
  const float* row = logits.data<float>() + (at - begin - 1) * V;
  double largest = row[0], sum = 0;
  for (int64_t v = 0; v < V; ++v) largest = std::max(largest, double(row[v]));
  for (int64_t v = 0; v < V; ++v) sum += std::exp(double(row[v]) - largest);
  return largest + std::log(sum) - double(row[tokens[size_t(at)]]);
}

struct Sum {
  double nll = 0;
  int64_t tokens = 0;
};

// Every token from 1 on, in the first window (at multiples of the stride) that reaches it; the
// first token of a window has no context and is not predicted.
Sum strided(nn::Model& model, const std::vector<int32_t>& tokens, int64_t window, int64_t stride) {
  Sum out;
  for (int64_t at = 1; at < int64_t(tokens.size()); ++at) {
    int64_t begin = 0;
    while (begin + window <= at) begin += stride;
    if (begin == at) continue;
    out.nll += surprise(model, tokens, begin, at);
    ++out.tokens;
  }
  return out;
}

}  // namespace

TEST_CASE("perplexity: adjacent windows, the rest dropped, against single tokens") {
  Pair pair({}, "dense");
  const std::vector<int32_t> tokens = some_tokens(16 * 3 + 5);
  Sum expected;
  for (int64_t begin = 0; begin + 16 <= int64_t(tokens.size()); begin += 16) {
    for (int64_t at = begin + 1; at < begin + 16; ++at, ++expected.tokens)
      expected.nll += surprise(*pair.teacher, tokens, begin, at);
  }
  const WindowSource source(tokens, 16, 0);
  for (int64_t B : {1, 2, 8}) {
    const Perplexity p = evaluate(*pair.teacher, source, {.batch_size = B});
    CHECK(p.tokens == expected.tokens);
    CHECK(p.nll == doctest::Approx(expected.nll / double(expected.tokens)).epsilon(1e-6));
    CHECK(p.value() == doctest::Approx(std::exp(p.nll)));
  }
  for (const auto& p : pair.teacher->named_parameters()) p.parameter->value.data<float>()[0] = NAN;
  CHECK_REFUSES(evaluate(*pair.teacher, source, {}), "the loss of a token is not finite");
}

TEST_CASE("perplexity: an observer that does not know where texts end is refused") {
  Pair pair({}, "dense");
  WindowSource source(some_tokens(48), 16, 0);
  source.shorten({{1, 9}});
  KeysRead observer;
  EvaluateCall call{.batch_size = 3};
  const Perplexity p = evaluate(*pair.teacher, source, call);
  CHECK(p.tokens == 15 + 8 + 15);
  call.observer = &observer;
  CHECK_REFUSES(evaluate(*pair.teacher, source, call), "observer", "lengths");
  call.before_batch = [](const Batch&) {};
  CHECK(evaluate(*pair.teacher, source, call).nll == p.nll);
}

TEST_CASE("perplexity: only the first tokens of every window, against windows of that length") {
  Pair pair({}, "dense");
  const std::vector<int32_t> tokens = some_tokens(16 * 3);
  std::vector<int32_t> starts;
  for (size_t begin = 0; begin < tokens.size(); begin += 16)
    starts.insert(starts.end(), tokens.begin() + long(begin), tokens.begin() + long(begin) + 6);
  const Perplexity wanted = evaluate(*pair.teacher, WindowSource(starts, 6, 0), {});
  const WindowSource source(tokens, 16, 0);
  const Perplexity got = evaluate(*pair.teacher, source, {.max_tokens = 6});
  CHECK(got.tokens == 3 * 5);
  CHECK(got.nll == wanted.nll);
  CHECK(evaluate(*pair.teacher, source, {.max_tokens = 17}).tokens == 3 * 15);
}

TEST_CASE("mask health is that of the first 2,048 tokens of a window, or of 4 k") {
  Pair pair({.tokens = 2400}, "sea");
  const WindowSource source(some_tokens(2400), 2400, 0);
  for (const auto& [k, tokens] : {std::pair<int64_t, int64_t>{3, 2048}, {550, 2200}}) {
    const int64_t wanted = tokens;
    const MaskHealth health = health_of_start(pair.config, {.k = k}, [&](const EvaluateCall& call) {
      CHECK(call.max_tokens == wanted);
      evaluate(*pair.student, source, call);
    });
    CHECK(health.rows == 2 * recall::kRows);  // of two layers
  }
}

TEST_CASE("perplexity: strides, against single tokens in their first window") {
  Pair pair({}, "dense");
  for (int64_t n : {2, 15, 16, 17, 24, 40, 53}) {
    const std::vector<int32_t> tokens = some_tokens(n);
    for (int64_t window : {2, 7, 16}) {
      for (int64_t stride : {int64_t(1), (window + 1) / 2, window}) {
        INFO("n " << n << " window " << window << " stride " << stride);
        const Sum expected = strided(*pair.teacher, tokens, window, stride);
        const Perplexity p =
            evaluate_strided(*pair.teacher, tokens, {window, stride}, {.batch_size = 3});
        CHECK(p.tokens == expected.tokens);
        CHECK(p.nll == doctest::Approx(expected.nll / double(expected.tokens)).epsilon(1e-6));
      }
    }
  }
}

TEST_CASE("perplexity: how many windows a stride makes; only the first ones on request") {
  CHECK(StridedWindows{16, 8}.count(2) == 1);
  CHECK(StridedWindows{16, 8}.count(16) == 1);
  CHECK(StridedWindows{16, 8}.count(17) == 2);
  CHECK(StridedWindows{16, 8}.count(24) == 2);
  CHECK(StridedWindows{16, 8}.count(25) == 3);
  CHECK(StridedWindows{16, 16}.count(48) == 3);
  CHECK(StridedWindows{16, 1}.count(48) == 33);
  Pair pair({}, "dense");
  const std::vector<int32_t> tokens = some_tokens(53);
  const Perplexity p = evaluate_strided(*pair.teacher, tokens, {16, 8}, {.max_windows = 2});
  CHECK(p.tokens == 15 + 8);
}

TEST_CASE("perplexity: strides that cannot be") {
  Pair pair({}, "dense");
  const std::vector<int32_t> tokens = some_tokens(20);
  auto refused = [&](StridedWindows windows, EvaluateCall call = {}) {
    return message([&] { evaluate_strided(*pair.teacher, tokens, windows, call); });
  };
  check_says(refused({16, 0}), {"evaluate", "stride", "0", "16"});
  check_says(refused({16, 17}), {"evaluate", "stride", "17", "16"});
  CHECK(refused({1, 1}) == "evaluate: a stride of 1 cannot be used with windows of 1 tokens");
  CHECK(refused({16, 8}, {.loss_from = 3}) ==
        "evaluate: loss_from cannot be combined with a stride");
  CHECK(message([&] {
          evaluate_strided(*pair.teacher, std::span(tokens).first(1), {16, 8}, {});
        }) == "evaluate: 1 tokens predict nothing");
}

}  // namespace brine::test
