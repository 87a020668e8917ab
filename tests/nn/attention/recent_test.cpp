// Attention to the most recent blocks of keys and to the first ones (sinks), against its
// definition.
#include "tests/nn/attention/definition.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

constexpr int64_t kWindowBlock = 4;

// Whether query t, one of w visible tokens of a causal or a full sequence, sees key j.
bool sees(int64_t t, int64_t j, int64_t w, int64_t k, int64_t sinks, bool causal) {
  if (j >= w) return false;
  if (causal) {
    const int64_t blocks = (k + kWindowBlock - 1) / kWindowBlock, block = j / kWindowBlock;
    return block < sinks || block > t / kWindowBlock - (blocks - sinks);
  }
  const int64_t n = std::min(k, w), first = std::clamp<int64_t>(t - n / 2, 0, w - n);
  return j >= first && j < first + n;
}

std::map<std::string, std::string> recent_settings(int64_t k, int64_t sinks) {
  return {{"k", std::to_string(k)},
          {"sinks", std::to_string(sinks)},
          {"block", std::to_string(kWindowBlock)}};
}

}  // namespace

TEST_CASE("recent: the most recent blocks, and the first ones if there are sinks") {
  for (const AttentionCase& c : attention_cases()) {
    for (int64_t sinks : {0, 1, 2}) {
      if (sinks > 0 && !c.causal) continue;
      for (int64_t k : {9, 12, 13, 40}) {
        INFO(c.name() << " sinks " << sinks << " k " << k);
        nn::AttentionInput in = c.input();
        const PairWeight weight = softmax_weight(c, in);
        const std::vector<double> wanted =
            attention_by(c, in.v, [&](int64_t b, int64_t h, int64_t t, int64_t j) {
              return sees(t, j, c.width(b, t), k, sinks, c.causal) ? weight(b, h, t, j) : 0;
            });
        const auto block = c.make("recent", recent_settings(k, sinks));
        for (bool dense_path : {false, true}) {
          in.options.dense_path = dense_path;
          CHECK(close(block->forward(in).to_vector(), wanted, 1e-13, 1e-12));
        }
      }
    }
  }
}

TEST_CASE("recent: decoding gives the rows of the whole pass, with fewer and with more keys") {
  const AttentionCase c{.T = 40};
  // Prompts with fewer tokens than sinks, fewer than keys, and more than both.
  for (int64_t prompt : {1, 3, 5, 7, 8, 20}) {
    std::vector<int64_t> k(size_t(c.T), 12);
    std::fill(k.begin() + 25, k.begin() + 30, 8);
    std::fill(k.begin() + 30, k.end(), 20);
    check_steps(c, *c.make("recent", recent_settings(12, 1)), prompt, k);
  }
}

TEST_CASE("recent: sinks that leave no block are refused with what is valid, and in an encoder") {
  const AttentionCase c;
  CHECK_REFUSES(c.make("recent", recent_settings(8, 2)), "recent", "k = 8", "2 sinks",
                "it must be at least 12");
  nn::AttentionInput in = c.input();
  in.options.k = 4;
  CHECK_REFUSES(c.make("recent", recent_settings(8, 1))->forward(in), "recent", "k = 4", "1 sinks",
                "at least 8");
  CHECK_REFUSES(AttentionCase{.causal = false}.make("recent", recent_settings(8, 1)), "recent",
                "leave out sinks");
  CHECK_NOTHROW(c.make("recent", recent_settings(std::numeric_limits<int64_t>::max(), 0)));
}

}  // namespace brine::test
