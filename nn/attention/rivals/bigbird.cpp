// BigBird: blocks of keys, namely a window of blocks around that of the query, global blocks, the
// first of the sequence, which every query sees and which in an encoder see every key, and blocks
// drawn at random for each head, the same in every call (Zaheer, Guruganesh, Dubey and others 2020,
// Big Bird: Transformers for Longer Sequences). Linear in T.
#include <algorithm>

#include "nn/attention/rivals/pattern_keys.h"
#include "tensor/base/random.h"

namespace brine::nn {
namespace {

struct BigbirdConfig {
  int64_t k = 64, window = 3, global = 2, random = 3, block = 0, seed = 1;

  void describe(data::Schema& s) {
    s.field("k", k, "Keys that a query sees, in window, global and random blocks", {.min = 1});
    s.field("window_blocks", window,
            "Blocks of the window, which ends with the query's (encoder: has it in the middle)",
            {.min = 1});
    s.field("global_blocks", global,
            "First blocks, which every query sees and which in an encoder see all tokens",
            {.min = 0});
    s.field("random_blocks", random, "Blocks drawn at random (causal: among the earlier ones)",
            {.min = 0});
    s.field("block", block, "Keys of a block unless a call gives k; 0 = from k", {.min = 0});
    s.field("seed", seed, "Seed of the random blocks", {.min = 0});
  }
};

// The blocks of one query, from the position of the block that contains it.
class Blocks {
 public:
  Blocks(const BigbirdConfig& config, bool causal) : config_(config), causal_(causal) {}

  // Of a query in `block`, for head h, when `count` blocks have visible keys, ascending.
  std::vector<int64_t> of(int64_t h, int64_t block, int64_t count) const {
    const int64_t later = causal_ ? 0 : (config_.window - 1) / 2;
    const int64_t earlier = config_.window - 1 - later, global = std::min(config_.global, count);
    const int64_t first = std::max(global, block - earlier),
                  end = std::min(count, block + later + 1);
    std::vector<int64_t> blocks;
    for (int64_t i = 0; i < global; ++i) blocks.push_back(i);
    for (int64_t i = first; i < end; ++i) blocks.push_back(i);
    // Before the window, and in an encoder after it.
    const int64_t before = std::max<int64_t>(0, std::min(first, end) - global);
    const int64_t after = causal_ ? 0 : count - std::max(end, global);
    for (int64_t i : drawn(h, block, before + after)) {
      blocks.push_back(i < before ? global + i : std::max(end, global) + i - before);
    }
    std::sort(blocks.begin(), blocks.end());
    return blocks;
  }

 private:
  // Different ones of `candidates` numbers, each with the same probability (Floyd's method).
  std::vector<int64_t> drawn(int64_t h, int64_t block, int64_t candidates) const {
    const int64_t n = std::min(config_.random, candidates);
    const RandomSlice slice{.seed = uint64_t(config_.seed),
                            .stream = uint64_t(h),
                            .first = uint64_t(block * ((config_.random + 3) / 4))};
    std::vector<int64_t> out;
    for (int64_t i = candidates - n; i < candidates; ++i) {
      const uint64_t word = slice.word(uint64_t(i - (candidates - n)));
      const int64_t at = int64_t(word * uint64_t(i + 1) >> 32);
      out.push_back(std::find(out.begin(), out.end(), at) == out.end() ? at : i);
    }
    return out;
  }

  BigbirdConfig config_;
  bool causal_;
};

class Bigbird : public PatternKeys {
 public:
  Bigbird(Init&, const AttentionShape& shape, const BigbirdConfig& config)
      : PatternKeys(shape), config_(config) {}

 protected:
  // The last block of an encoder may be shorter, and only some heads may have drawn it.
  HeadLists lists() const override {
    if (config_.random == 0) return HeadLists::equal;
    return shape_.causal ? HeadLists::of_one_length : HeadLists::separate;
  }

  KeysOfQuery keys_of(const RuntimeOptions& options) const override {
    const Blocks blocks(config_, shape_.causal);
    const int64_t size = block_size(options), global = shape_.causal ? 0 : config_.global;
    return [=](int64_t h, int64_t t, int64_t w, std::vector<int32_t>& keys) {
      auto take = [&](int64_t begin, int64_t end) {
        for (int64_t j = begin; j < end; ++j) keys.push_back(int32_t(j));
      };
      if (t / size < global) return take(0, w);
      for (int64_t i : blocks.of(h, t / size, (w + size - 1) / size)) {
        take(i * size, std::min(w, (i + 1) * size));
      }
    };
  }

 private:
  int64_t block_size(const RuntimeOptions& options) const {
    if (options.k == 0 && config_.block > 0) return config_.block;
    const int64_t k = options.kept(config_.k);
    return std::max<int64_t>(1, k / (config_.window + config_.global + config_.random));
  }

  BigbirdConfig config_;
};
const RegisterAttention<Bigbird, BigbirdConfig> registration("bigbird");

}  // namespace
}  // namespace brine::nn
