// Longformer: a sliding window, which may skip keys (dilation), and global tokens, the first of the
// sequence, which every query sees and which in an encoder see every key (Beltagy, Peters and Cohan
// 2020, Longformer: The Long-Document Transformer). Linear in T.
#include <algorithm>

#include "nn/attention/rivals/pattern_keys.h"

namespace brine::nn {
namespace {

struct LongformerConfig {
  int64_t k = 64, global = 1, dilation = 1;

  void describe(data::Schema& s) {
    s.field("k", k, "Keys that a query sees: global ones and a window (encoder: around it)",
            {.min = 1});
    s.field("global", global,
            "How many of the k keys are first tokens; in an encoder these see all", {.min = 0});
    s.field("dilation", dilation, "Distance of neighbouring keys of the window", {.min = 1});
  }
};

class Longformer : public PatternKeys {
 public:
  Longformer(Init&, const AttentionShape& shape, const LongformerConfig& config)
      : PatternKeys(shape), config_(config) {
    window({});  // throws for a k that is not above the number of global tokens
  }

 protected:
  KeysOfQuery keys_of(const RuntimeOptions& options) const override {
    const int64_t n = window(options), step = config_.dilation, global = config_.global;
    const int64_t later = shape_.causal ? 0 : (n - 1) / 2, earlier = n - 1 - later;
    const bool global_queries = !shape_.causal;
    return [=](int64_t, int64_t t, int64_t w, std::vector<int32_t>& keys) {
      if (global_queries && t < global) {
        for (int64_t j = 0; j < w; ++j) keys.push_back(int32_t(j));
        return;
      }
      const int64_t first = std::min(global, w);
      for (int64_t j = 0; j < first; ++j) keys.push_back(int32_t(j));
      const int64_t below = t - first >= 0 ? std::min(earlier, (t - first) / step) : -1;
      for (int64_t i = -below; i <= later && t + i * step < w; ++i) {
        keys.push_back(int32_t(t + i * step));
      }
    };
  }

 private:
  int64_t window(const RuntimeOptions& options) const {
    const int64_t k = options.kept(config_.k);
    check(config_.global < k, "longformer: global ", config_.global, " must be below k ", k);
    return k - config_.global;
  }

  LongformerConfig config_;
};
const RegisterAttention<Longformer, LongformerConfig> registration("longformer");

}  // namespace
}  // namespace brine::nn
