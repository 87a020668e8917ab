// Longformer's window, dilation and global tokens, against their definition.
#include "tests/nn/attention/definition.h"
#include "tests/nn/attention/mask_check.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

struct Window {
  int64_t k, global, dilation;

  std::map<std::string, std::string> settings() const {
    return {{"k", std::to_string(k)},
            {"global", std::to_string(global)},
            {"dilation", std::to_string(dilation)}};
  }
};

// Whether query t sees key j of w visible ones.
bool sees(const Window& window, bool causal, int64_t t, int64_t j, int64_t w) {
  if (j >= w) return false;
  if (j < window.global || (!causal && t < window.global)) return true;
  if ((t - j) % window.dilation != 0) return false;
  const int64_t n = window.k - window.global, distance = (t - j) / window.dilation;
  if (causal) return distance < n;
  return distance >= 0 ? distance <= n / 2 : -distance <= (n - 1) / 2;
}

}  // namespace

TEST_CASE("longformer: a window with steps, and global tokens, by softmax over these") {
  for (const MaskCase& m : rival_cases(5)) {
    for (const Window& window :
         {Window{5, 0, 1}, {6, 1, 1}, {7, 2, 3}, {4, 1, 2}, {40, 1, 1}, {1, 0, 1}}) {
      INFO(m.name() << " k " << window.k << " global " << window.global << " dilation "
                    << window.dilation);
      Block block = make_block("longformer", m.causal, Dtype::f64, 5, 300, window.settings());
      const Numbers mask = mask_by(m, [&](int64_t b, int64_t t, int64_t j) {
        return sees(window, m.causal, t, j, m.width(b, t));
      });
      check_block(block, m, inputs(m.B, m.T, Dtype::f64), mask);
    }
  }
}

TEST_CASE("longformer: a call may keep fewer or more keys, and decoding gives the same rows") {
  const AttentionCase c;
  for (const Window& window : {Window{6, 1, 1}, {7, 2, 3}}) {
    const auto few = c.make("longformer", window.settings());
    const auto many = c.make("longformer", Window{9, window.global, window.dilation}.settings());
    nn::AttentionInput in = c.input();
    const Tensor wanted = many->forward(in);
    in.options.k = 9;
    CHECK(same_bits(few->forward(in), wanted));
    for (int64_t prompt : {0, 1, 2, 13}) check_steps(c, *few, prompt, {0, 4, 9});
  }
}

TEST_CASE("longformer: a causal window without steps is that of recent with as many sinks") {
  for (const AttentionCase& c : attention_cases()) {
    if (!c.causal) continue;
    const nn::AttentionInput in = c.input();
    const auto block = c.make("longformer", Window{6, 2, 1}.settings());
    const auto other = c.make("recent", {{"k", "6"}, {"sinks", "2"}, {"block", "1"}});
    CHECK(close(block->forward(in).to_vector(), other->forward(in).to_vector(), 1e-13, 1e-12));
  }
}

TEST_CASE("longformer: a window without keys is refused") {
  const AttentionCase c;
  CHECK_REFUSES(c.make("longformer", Window{3, 3, 1}.settings()), "longformer", "global 3", "k 3");
  nn::AttentionInput in = c.input();
  in.options.k = 2;
  CHECK_REFUSES(c.make("longformer", Window{6, 2, 1}.settings())->forward(in), "longformer",
                "global 2", "k 2");
}

}  // namespace brine::test
