// indexer against its definition in plain loops; its loss; its warm-up.
#include "tests/nn/attention/mask_check.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

constexpr int64_t kChannels = kHeads * kSize, kIndexHeads = 2, kIndexSize = 4;

Block indexer(bool causal, int64_t k, int64_t warmup = 0) {
  return make_block("indexer", causal, Dtype::f64, 5, 300,
                    {{"k", std::to_string(k)},
                     {"index_heads", std::to_string(kIndexHeads)},
                     {"index_size", std::to_string(kIndexSize)},
                     {"dense_warmup", std::to_string(warmup)}});
}

Numbers parameter(Block& block, const std::string& path) {
  for (const auto& p : block.module->named_parameters())
    if (p.path == "indexer." + path) return p.parameter->value.to_vector();
  FAIL("no parameter ", path);
  return {};
}

// w [out, C] times token t of sequence b of hidden [B, T, C].
Numbers times(const Numbers& w, const Numbers& hidden, int64_t token) {
  Numbers y(w.size() / size_t(kChannels), 0);
  for (size_t o = 0; o < y.size(); ++o) {
    for (int64_t c = 0; c < kChannels; ++c)
      y[o] += w[o * size_t(kChannels) + size_t(c)] * hidden[size_t(token * kChannels + c)];
  }
  return y;
}

Numbers normed(const Numbers& x, const Numbers& weight, const Numbers& bias) {
  double mean = 0, square = 0;
  for (double v : x) mean += v / double(x.size());
  for (double v : x) square += (v - mean) * (v - mean) / double(x.size());
  Numbers y(x.size());
  for (size_t i = 0; i < x.size(); ++i)
    y[i] = (x[i] - mean) / std::sqrt(square + 1e-5) * weight[i] + bias[i];
  return y;
}

// I [B, T, T], 0 where a row does not see a key.
Numbers naive_scores(Block& block, const Inputs& in, const MaskCase& m) {
  const Numbers hidden = in.hidden.to_vector();
  const Numbers wq = parameter(block, "query.weight"), wk = parameter(block, "key.weight"),
                ww = parameter(block, "weight.weight"), g = parameter(block, "key_norm.weight"),
                beta = parameter(block, "key_norm.bias");
  Numbers scores(size_t(m.B * m.T * m.T), 0);
  for (int64_t b = 0; b < m.B; ++b) {
    for (int64_t t = 0; t < m.length(b); ++t) {
      const Numbers q = times(wq, hidden, b * m.T + t), w = times(ww, hidden, b * m.T + t);
      for (int64_t j = 0; j < m.width(b, t); ++j) {
        const Numbers k = normed(times(wk, hidden, b * m.T + j), g, beta);
        double& s = scores[size_t((b * m.T + t) * m.T + j)];
        for (int64_t h = 0; h < kIndexHeads; ++h) {
          double dot = 0;
          for (int64_t c = 0; c < kIndexSize; ++c)
            dot += q[size_t(h * kIndexSize + c)] * k[size_t(c)];
          s += w[size_t(h)] * std::max(dot, 0.0) / std::sqrt(double(kIndexHeads * kIndexSize));
        }
      }
    }
  }
  return scores;
}

double naive_index_loss(const Numbers& scores, const Inputs& in, const MaskCase& m) {
  const Numbers p = naive_attention(in.q.to_vector(), in.k.to_vector(), {}, kSize, m);
  double total = 0, rows = 0;
  for (int64_t b = 0; b < m.B; ++b) {
    for (int64_t t = 0; t < m.length(b); ++t, ++rows) {
      double sum = 0;
      auto score = [&](int64_t j) { return std::exp(scores[size_t((b * m.T + t) * m.T + j)]); };
      for (int64_t j = 0; j < m.width(b, t); ++j) sum += score(j);
      for (int64_t j = 0; j < m.width(b, t); ++j) {
        double target = 0;
        for (int64_t h = 0; h < m.H; ++h) target += p[m.index(b, h, t, j, m.T)] / double(m.H);
        total += target * std::log(target / (score(j) / sum));
      }
    }
  }
  return total / rows;
}

}  // namespace

TEST_CASE("indexer attends to the keys of the largest index scores, the same for all heads") {
  for (int64_t k : {1, 5, 40}) {
    for (const MaskCase& m : rival_cases(k)) {
      INFO(m.name());
      const Inputs in = inputs(m.B, m.T, Dtype::f64);
      Block block = indexer(m.causal, k);
      check_block(block, m, in, largest_scores(naive_scores(block, in, m), m));
    }
  }
}

TEST_CASE("indexer: the loss is the KL to the attention of all heads, only in training") {
  for (bool causal : {true, false}) {
    const MaskCase m{.B = 2, .H = kHeads, .T = 17, .k = 4, .causal = causal, .lengths = {17, 9}};
    Block block = indexer(causal, m.k);
    const Inputs in = inputs(m.B, m.T, Dtype::f64);
    const Trained trained = train_pass(block, in, m);
    REQUIRE(trained.loss.defined());
    const double wanted = naive_index_loss(naive_scores(block, in, m), in, m);
    CHECK(trained.loss.item() == doctest::Approx(wanted).epsilon(1e-10));
    check_attached_loss(block, in, m);
    nn::Tap tap("indexer");
    pass(block, in, m.visible().lengths, {}, {}, &tap);
    CHECK_FALSE(tap.has("selection_loss"));
  }
}

TEST_CASE("indexer: training attends to all keys in the steps of the warm-up") {
  const MaskCase m{.B = 1, .H = kHeads, .T = 23, .k = 4};
  const Inputs in = inputs(m.B, m.T, Dtype::f64);
  Block block = indexer(true, m.k, 2);
  const Tensor dense = flash_attention(in.q, in.k, in.v, m.visible());
  const Tensor sparse = pass(block, in).y;
  CHECK_FALSE(same_bits(sparse, dense));
  for (int64_t steps : {0, 1, 2, 3}) {
    block.module->on_step(steps);
    const Trained trained = train_pass(block, in, m);
    CHECK(trained.loss.defined());
    CHECK(same_bits(trained.y.detach(), steps < 2 ? dense : sparse));
    CHECK(same_bits(pass(block, in).y, sparse));  // evaluation
  }
}

TEST_CASE("indexer: with rotary positions a score depends on the distance of query and key") {
  const int64_t T = 12, C = kChannels;
  nn::Init init{.random = {.seed = 3}, .dtype = Dtype::f64, .linear_std = 0.3};
  const auto block = method_with("indexer", {{"k", "3"}, {"index_size", "8"}})
                         ->make(init, {.heads = kHeads, .head_size = kSize, .rotary = true});
  // All tokens are alike: without positions the later of equal keys would be kept.
  Tensor hidden = normal({1, 1, C}, 9, Dtype::f64);
  hidden = broadcast_to(hidden, {1, T, C});
  const Inputs in = inputs(1, T, Dtype::f64);
  nn::Tap tap("indexer");
  block->forward({.q = in.q, .k = in.k, .v = in.v, .hidden = hidden, .tap = &tap});
  MaskCase m{.B = 1, .H = kHeads, .T = T, .k = 3};
  const Numbers mask = seen_mask(tap, m).to_vector();
  bool all_recent = true;
  // The distances of the kept keys of a row, in all rows with that many keys before them.
  for (int64_t t = 3; t < T; ++t) {
    for (int64_t j = t - 2; j <= t; ++j) all_recent = all_recent && mask[m.index(0, 0, t, j, T)];
  }
  CHECK_FALSE(all_recent);
  nn::RuntimeOptions options;
  auto state = block->make_state({.batch = 1, .capacity = T, .dtype = Dtype::f64});
  const Tensor whole = block->forward({.q = in.q, .k = in.k, .v = in.v, .hidden = in.hidden});
  for (int64_t t = 0; t < T; ++t) {
    const Tensor y = block->step({.q = rows(in.q, 2, t, 1),
                                  .k = rows(in.k, 2, t, 1),
                                  .v = rows(in.v, 2, t, 1),
                                  .hidden = rows(in.hidden, 1, t, 1)},
                                 *state);
    CHECK(close_to_scale(y, rows(whole, 1, t, 1), 1e-12));
  }
}

TEST_CASE("indexer: a call without the layer's input is refused") {
  Block block = indexer(true, 4);
  const Inputs in = inputs(1, 5, Dtype::f64);
  CHECK_REFUSES(block.module->forward({.q = in.q, .k = in.k, .v = in.v, .hidden = {}}), "indexer",
                "layer's input", "24");
}

}  // namespace brine::test
