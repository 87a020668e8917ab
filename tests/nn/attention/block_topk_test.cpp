// block-topk against its definition in plain loops, its gate and the loss that teaches it.
#include "tests/nn/attention/mask_check.h"

namespace brine::test {
namespace {

constexpr int64_t kBlock = 4;

Block block_of(bool causal, int64_t k, bool gate = false) {
  std::map<std::string, std::string> settings = {{"k", std::to_string(k)},
                                                 {"block", std::to_string(kBlock)}};
  if (gate) settings.insert({{"gate", "true"}, {"gate_size", "3"}});
  return make_block("block-topk", causal, Dtype::f64, 5, 300, settings);
}

// One head of one row: the blocks and what is known of them.
struct NaiveRow {
  std::vector<double> scores;   // of every block
  std::vector<bool> candidate;  // without the query's block and, in a decoder, later ones
};

// x [B, H, T, d] times w [H, d, r] of one head.
Numbers projected(const Numbers& row, const Numbers& w, int64_t h, int64_t r) {
  Numbers y(size_t(r), 0);
  for (int64_t i = 0; i < r; ++i) {
    for (int64_t c = 0; c < kSize; ++c)
      y[size_t(i)] += row[size_t(c)] * w[size_t((h * kSize + c) * r + i)];
  }
  return y;
}

struct Gate {
  Numbers query, key;  // [H, d, r]; empty: q . mean key
  int64_t r = 0;
};

Gate gate_of(Block& block) {
  Gate g;
  for (const auto& p : block.module->named_parameters()) {
    (p.path == "gate.query" ? g.query : g.key) = p.parameter->value.to_vector();
    g.r = p.parameter->value.dim(2);
  }
  return g;
}

NaiveRow naive_row(const Inputs& in, const MaskCase& m, const Gate& gate, int64_t b, int64_t h,
                   int64_t t) {
  const Numbers q = in.q.to_vector(), k = in.k.to_vector();
  const int64_t L = m.length(b);
  Numbers query(size_t(kSize), 0);
  for (int64_t c = 0; c < kSize; ++c) query[size_t(c)] = q[m.index(b, h, t, c, kSize)];
  NaiveRow row;
  for (int64_t first = 0; first < L; first += kBlock) {
    const int64_t end = std::min(L, first + kBlock);
    Numbers mean(size_t(kSize), 0);
    for (int64_t j = first; j < end; ++j) {
      for (int64_t c = 0; c < kSize; ++c)
        mean[size_t(c)] += k[m.index(b, h, j, c, kSize)] / double(end - first);
    }
    const Numbers x = gate.r ? projected(query, gate.query, h, gate.r) : query;
    const Numbers y = gate.r ? projected(mean, gate.key, h, gate.r) : mean;
    double score = 0;
    for (size_t c = 0; c < x.size(); ++c) score += x[c] * y[c];
    row.scores.push_back(gate.r ? score / std::sqrt(double(gate.r)) : score);
    const bool local = t >= first && t < end;
    row.candidate.push_back(!local && (!m.causal || end <= t));
  }
  return row;
}

// [B, H, T, T]
Numbers naive_block_mask(const Inputs& in, const MaskCase& m, const Gate& gate) {
  Numbers mask(size_t(m.B * m.H * m.T * m.T), 0);
  each_row(m, [&](int64_t b, int64_t h, int64_t t) {
    const NaiveRow row = naive_row(in, m, gate, b, h, t);
    const int64_t w = m.width(b, t), row_block = t / kBlock;
    if (w == 0) return;
    std::vector<std::pair<double, int64_t>> order;
    for (size_t c = 0; c < row.scores.size(); ++c)
      if (row.candidate[c]) order.push_back({row.scores[c], int64_t(c)});
    std::sort(order.rbegin(), order.rend());
    std::vector<int64_t> blocks = {row_block};
    const double local_keys = double(std::min(w, (row_block + 1) * kBlock) - row_block * kBlock);
    // As many blocks as bring the number of keys nearest to k, of two the larger one.
    const double wanted = std::floor((double(m.k) - local_keys) / double(kBlock) + 0.5);
    for (size_t i = 0; i < order.size() && double(i) < wanted; ++i)
      blocks.push_back(order[i].second);
    for (int64_t c : blocks) {
      for (int64_t j = c * kBlock; j < std::min(w, (c + 1) * kBlock); ++j)
        mask[m.index(b, h, t, j, m.T)] = 1;
    }
  });
  return mask;
}

// Mean over rows and heads of KL(attention by blocks || gate), among the candidates.
double naive_gate_loss(const Inputs& in, const MaskCase& m, const Gate& gate) {
  const Numbers q = in.q.to_vector(), k = in.k.to_vector();
  double total = 0, rows = 0;
  each_row(m, [&](int64_t b, int64_t h, int64_t t) {
    if (m.width(b, t) == 0) return;
    ++rows;
    const NaiveRow row = naive_row(in, m, gate, b, h, t);
    Numbers mass(row.scores.size(), 0);
    double of_mass = 0, of_gate = 0;
    for (size_t c = 0; c < mass.size(); ++c) {
      if (!row.candidate[c]) continue;
      of_gate += std::exp(row.scores[c]);
      const int64_t first = int64_t(c) * kBlock;
      for (int64_t j = first; j < std::min(m.length(b), first + kBlock); ++j) {
        double s = 0;
        for (int64_t i = 0; i < kSize; ++i)
          s += q[m.index(b, h, t, i, kSize)] * k[m.index(b, h, j, i, kSize)];
        mass[c] += std::exp(s / std::sqrt(double(kSize)));
      }
      of_mass += mass[c];
    }
    for (size_t c = 0; c < mass.size(); ++c) {
      if (!row.candidate[c]) continue;
      const double p = mass[c] / of_mass, a = std::exp(row.scores[c]) / of_gate;
      total += p * std::log(p / a);
    }
  });
  return total / rows;
}

}  // namespace

TEST_CASE("block-topk keeps the own block and those with the largest scores of mean keys") {
  for (int64_t k : {1, 6, 9, 30}) {
    for (const MaskCase& m : rival_cases(k)) {
      INFO(m.name());
      const Inputs in = inputs(m.B, m.T, Dtype::f64);
      for (bool gate : {false, true}) {
        Block block = block_of(m.causal, k, gate);
        check_block(block, m, in, naive_block_mask(in, m, gate_of(block)));
      }
    }
  }
}

TEST_CASE("block-topk keeps k keys on average") {
  const int64_t T = 256;
  MaskCase m{.B = 1, .H = kHeads, .T = T, .k = 18};
  Block block = block_of(true, m.k);
  nn::Tap tap("block-topk");
  pass(block, inputs(1, T, Dtype::f64), {}, {}, {}, &tap);
  const std::vector<double> mask = seen_mask(tap, m).to_vector();
  double kept = 0;
  for (int64_t t = 64; t < T; ++t) {
    for (int64_t j = 0; j < T; ++j) kept += mask[m.index(0, 0, t, j, T)];
  }
  CHECK(std::abs(kept / double(T - 64) - double(m.k)) <= 0.5);
}

TEST_CASE("block-topk keeps every key with the largest k") {
  const int64_t T = 40;
  auto seen = [&](int64_t k) {
    Block block = block_of(true, k);
    nn::Tap tap("block-topk");
    pass(block, inputs(1, T, Dtype::f64), {}, {}, {}, &tap);
    return seen_mask(tap, {.B = 1, .H = kHeads, .T = T, .k = k}).to_vector();
  };
  CHECK(seen(std::numeric_limits<int64_t>::max()) == seen(2 * T));
}

TEST_CASE("block-topk: the gate's loss is the KL to the attention by blocks, only in training") {
  for (bool causal : {true, false}) {
    const MaskCase m{.B = 2, .H = kHeads, .T = 19, .k = 6, .causal = causal, .lengths = {19, 10}};
    Block block = block_of(causal, m.k, true);
    const Inputs in = inputs(m.B, m.T, Dtype::f64);
    const Trained trained = train_pass(block, in, m);
    REQUIRE(trained.loss.defined());
    CHECK(trained.loss.item() ==
          doctest::Approx(naive_gate_loss(in, m, gate_of(block))).epsilon(1e-10));
    check_attached_loss(block, in, m);
    nn::Tap tap("block-topk");
    pass(block, in, m.visible().lengths, {}, {}, &tap);
    CHECK_FALSE(tap.has("selection_loss"));
    Block plain = block_of(causal, m.k);
    CHECK_FALSE(train_pass(plain, in, m).loss.defined());
  }
}

}  // namespace brine::test
