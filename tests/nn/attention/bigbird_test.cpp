// BigBird's blocks by their definition: which keys are fixed, how many blocks are drawn at random
// and how evenly, and softmax over the keys of the mask.
#include <set>

#include "tests/nn/attention/definition.h"
#include "tests/nn/attention/mask_check.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

using Settings = std::map<std::string, std::string>;

struct BlockRule {
  int64_t window, global, random, block;

  Settings settings(int64_t seed = 1) const {
    return {{"window_blocks", std::to_string(window)},
            {"global_blocks", std::to_string(global)},
            {"random_blocks", std::to_string(random)},
            {"block", std::to_string(block)},
            {"seed", std::to_string(seed)}};
  }
};

// The mask of a block in a new call.
Array mask_of(const AttentionCase& c, nn::Attention& block, int64_t k = 0) {
  nn::Tap tap("bigbird");
  nn::AttentionInput in = c.input();
  in.tap = &tap;
  in.options.k = k;
  block.forward(in);
  return shown_mask(c, tap);
}

// Checks the keys of query t of one head, which sees w; returns its random blocks.
std::set<int64_t> check_row(const BlockRule& rule, const AttentionCase& c, const Array& mask,
                            int64_t b, int64_t h, int64_t t, int64_t w) {
  const int64_t row_block = t / rule.block, blocks = (w + rule.block - 1) / rule.block;
  std::set<int64_t> drawn;
  int64_t candidates = 0;
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t later = c.causal ? 0 : (rule.window - 1) / 2;
    const bool fixed = i < rule.global || (!c.causal && row_block < rule.global) ||
                       (i <= row_block + later && i >= row_block - (rule.window - 1 - later));
    int64_t kept = 0, all = 0;
    for (int64_t j = i * rule.block; j < std::min(w, (i + 1) * rule.block); ++j, ++all) {
      kept += mask(b, h, t, j) == 1;
    }
    if (fixed) {
      CHECK(kept == all);
    } else {
      CHECK((kept == 0 || kept == all));
      if (kept > 0) drawn.insert(i);
      ++candidates;
    }
  }
  for (int64_t j = w; j < c.T; ++j) CHECK(mask(b, h, t, j) == 0);
  CHECK(int64_t(drawn.size()) == std::min(rule.random, candidates));
  return drawn;
}

}  // namespace

TEST_CASE("bigbird: window, global and random blocks of every query") {
  for (AttentionCase c : attention_cases()) {
    if (c.T > 1) c.T = 70;
    if (!c.lengths.empty())
      c.lengths = c.causal ? std::vector<int64_t>{70, 33} : std::vector<int64_t>{29, 70};
    for (const BlockRule& rule :
         {BlockRule{3, 2, 3, 4}, {1, 0, 2, 3}, {2, 1, 0, 5}, {4, 1, 1, 1}}) {
      INFO(c.name() << " blocks of " << rule.block << ": " << rule.window << " " << rule.global
                    << " " << rule.random);
      const auto block = c.make("bigbird", rule.settings(), 100);
      const Array mask = mask_of(c, *block), again = mask_of(c, *block);
      int64_t differing_heads = 0, differing_calls = 0;
      for (int64_t b = 0; b < c.B; ++b) {
        for (int64_t t = 0; t < c.length(b); ++t) {
          std::set<int64_t> first;
          for (int64_t h = 0; h < c.H; ++h) {
            const std::set<int64_t> drawn = check_row(rule, c, mask, b, h, t, c.width(b, t));
            if (h == 0) first = drawn;
            differing_heads += drawn != first;
            differing_calls += drawn != check_row(rule, c, again, b, h, t, c.width(b, t));
          }
        }
      }
      CHECK(differing_calls == 0);
      CHECK((differing_heads > 0) == (rule.random > 0 && c.T > 1));
    }
  }
}

TEST_CASE("bigbird: softmax over the keys of the mask") {
  for (const MaskCase& m : rival_cases(8)) {
    INFO(m.name());
    Block block =
        make_block("bigbird", m.causal, Dtype::f64, 5, 300, BlockRule{3, 1, 2, 2}.settings());
    const Inputs in = inputs(m.B, m.T, Dtype::f64);
    nn::Tap tap("bigbird");
    pass(block, in, m.visible().lengths, {}, {}, &tap);
    check_block(block, m, in, seen_mask(tap, m).to_vector());
  }
}

TEST_CASE("bigbird: every block is drawn as often as the others, and another seed draws others") {
  const int64_t T = 40, drawn = 3;
  const AttentionCase c{.B = 1, .H = 256, .G = 256, .T = T, .d = 1};
  const BlockRule rule{1, 1, drawn, 1};
  const Array mask = mask_of(c, *c.make("bigbird", rule.settings(1), T));
  const Array other = mask_of(c, *c.make("bigbird", rule.settings(2), T));
  // Of the keys 1..38 the query 39 draws 3: each 256 x 3 / 38 = 20.2 times, deviation 4.3.
  int64_t different = 0, total = 0;
  for (int64_t j = 1; j < T - 1; ++j) {
    int64_t times = 0;
    for (int64_t h = 0; h < c.H; ++h) {
      times += mask(0, h, T - 1, j) == 1;
      different += mask(0, h, T - 1, j) != other(0, h, T - 1, j);
    }
    INFO("key " << j);
    CHECK((times > 2 && times < 38));
    total += times;
  }
  CHECK(total == c.H * drawn);
  CHECK(different > c.H * drawn);
}

TEST_CASE("bigbird: k gives the size of blocks, and decoding gives the rows of a pass") {
  const AttentionCase c{.T = 38};
  const auto fixed = c.make("bigbird", BlockRule{3, 2, 3, 3}.settings());
  const auto by_k = c.make("bigbird", {{"k", "24"}, {"block", "0"}});
  const auto fewer = c.make("bigbird", {{"k", "16"}, {"block", "0"}});
  const nn::AttentionInput in = c.input();
  CHECK(same_bits(by_k->forward(in), fixed->forward(in)));
  nn::AttentionInput of_call = in;
  of_call.options.k = 24;
  CHECK(same_bits(fewer->forward(of_call), by_k->forward(in)));
  of_call.options.k = 16;
  CHECK(same_bits(fixed->forward(of_call), fewer->forward(in)));
  // A budget that is smaller than the number of blocks leaves one key to each of them.
  of_call.options.k = 1;
  CHECK(same_bits(fixed->forward(of_call),
                  c.make("bigbird", BlockRule{3, 2, 3, 1}.settings())->forward(in)));
  for (int64_t prompt : {0, 1, 7, 20}) check_steps(c, *fixed, prompt, {0, 16, 24});
}

}  // namespace brine::test
