// Attention to the most recent keys and to the first ones (sinks), against its definition.
#include "tests/nn/attention/definition.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

// Whether query t, one of w visible tokens of a causal or a full sequence, sees key j.
bool sees(int64_t t, int64_t j, int64_t w, int64_t k, int64_t sinks, bool causal) {
  if (j >= w) return false;
  if (w <= k || j < sinks) return true;
  const int64_t window = k - sinks;
  if (causal) return j > t - window;
  // The window around t, moved inside the keys that are not sinks.
  const int64_t first = std::max(sinks, std::min(t - window / 2, w - window));
  return j >= first && j < first + window;
}

std::map<std::string, std::string> recent_settings(int64_t k, int64_t sinks) {
  return {{"k", std::to_string(k)}, {"sinks", std::to_string(sinks)}};
}

}  // namespace

TEST_CASE("recent: the most recent keys, and the first ones if there are sinks") {
  for (const AttentionCase& c : attention_cases()) {
    for (int64_t sinks : {0, 1, 4}) {
      for (int64_t k : {5, 6, 12, 40}) {
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

TEST_CASE("recent: decoding with sinks gives the rows of the whole pass, also with fewer keys") {
  const AttentionCase c{.T = 40};
  // Prompts with fewer tokens than sinks, fewer than keys, and more than both.
  for (int64_t prompt : {1, 2, 3, 5, 7, 8, 20}) {
    std::vector<int64_t> k(size_t(c.T), 7);
    std::fill(k.begin() + 30, k.end(), 5);
    check_steps(c, *c.make("recent", recent_settings(7, 3)), prompt, k);
  }
}

TEST_CASE("recent: as many sinks as keys are refused") {
  const AttentionCase c;
  check_refuses([&] { c.make("recent", recent_settings(4, 4)); }, {"recent", "sinks 4", "k 4"});
  nn::AttentionInput in = c.input();
  in.options.k = 2;
  check_refuses([&] { c.make("recent", recent_settings(8, 2))->forward(in); },
                {"recent", "sinks 2", "k 2"});
}

}  // namespace brine::test
