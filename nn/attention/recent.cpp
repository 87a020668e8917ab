// Attention to the k most recent keys (a sliding window; for an encoder, the k nearest keys), some
// of which may be the first keys instead (attention sinks: Xiao et al. 2023), exact on these: the
// baseline that a selection of keys must exceed. Linear in T.
#include <algorithm>
#include <cmath>

#include "autograd/ops.h"
#include "nn/attention/chosen_keys.h"
#include "nn/attention/key_lists.h"
#include "tensor/meter/cost_meter.h"

namespace brine::nn {
namespace {

struct RecentConfig {
  int64_t k = 64, sinks = 0;

  void describe(data::Schema& s) {
    s.field("k", k, "Most recent (encoder: nearest) keys that a query sees", {.min = 1});
    s.field("sinks", sinks, "Of these k keys so many are the first ones of the sequence",
            {.min = 0});
  }
};

// The keys of a row: the first `sinks`, then `window` from `start` on.
struct RecentRow {
  int64_t sinks, start, window;
};

// Of row t, which sees w keys.
RecentRow recent_row(int64_t t, int64_t w, int64_t k, int64_t sinks, bool causal) {
  if (w <= k) return {0, 0, w};
  const int64_t n = k - sinks;
  return {sinks, causal ? w - n : std::clamp<int64_t>(t - n / 2, sinks, w - n), n};
}

// The last min(k, w) visible keys of every row, or as many around it, some of them the first keys;
// the same for all heads.
FlatCsr recent_keys(int64_t B, int64_t H, int64_t T, int64_t k, int64_t sinks,
                    const Visibility& visible, Device device) {
  const RowWidths widths(visible, T);
  const KeyListShape shape{.batch = B, .heads = H, .rows = T, .keys = T, .lists = HeadLists::equal};
  return key_lists(shape, device, [&](int64_t b, int64_t, int64_t t, std::vector<int32_t>& keys) {
    const RecentRow row = recent_row(t, widths(b, t), k, sinks, visible.causal);
    for (int64_t j = 0; j < row.sinks; ++j) keys.push_back(int32_t(j));
    for (int64_t j = 0; j < row.window; ++j) keys.push_back(int32_t(row.start + j));
  });
}

// The last keys and values, oldest first, in twice the memory that they need: when it is full the
// newest window - 1 move to the front. The first keys and values are in separate memory. Each step
// copies them to the rows before its window; no later step reads the keys that were in these rows.
class RecentState : public AttentionState {
 public:
  RecentState(const StateRequest& r, const AttentionShape& shape, int64_t window, int64_t sinks)
      : AttentionState(r.batch, r.capacity, r.device),
        window(window),
        sinks(sinks),
        keys(part("keys", {r.batch, shape.groups(), 2 * window, shape.head_size}, r.cached())),
        values(part("values", {r.batch, shape.groups(), 2 * window, shape.head_size}, r.cached())),
        held(part("held", {r.batch}, Dtype::i64)) {
    if (sinks == 0) return;
    const Shape shape_of_sinks{r.batch, shape.groups(), sinks, shape.head_size};
    sink_keys = &part("sink_keys", shape_of_sinks, r.cached());
    sink_values = &part("sink_values", shape_of_sinks, r.cached());
  }

  // The last tokens of prompts k and v [B, G, T, d].
  void fill(int64_t slot, const Tensor& k, const Tensor& v, const Tensor& prompt_lengths) {
    begin(slot, k.dim(0), k.dim(2), prompt_lengths);
    for (int64_t b = slot; b < slot + k.dim(0); ++b) {
      const int64_t n = std::min(window, length(b));
      held.data<int64_t>()[b] = n;
      place(keys, b, 0, k.detach().slice(0, b - slot, 1).slice(2, length(b) - n, n));
      place(values, b, 0, v.detach().slice(0, b - slot, 1).slice(2, length(b) - n, n));
      if (sinks == 0) continue;
      const int64_t first = std::min(sinks, length(b));
      place(*sink_keys, b, 0, k.detach().slice(0, b - slot, 1).slice(2, 0, first));
      place(*sink_values, b, 0, v.detach().slice(0, b - slot, 1).slice(2, 0, first));
    }
  }

  void append(const Tensor& k, const Tensor& v) {
    advance();
    for (int64_t b = 0; b < batch(); ++b) {
      int64_t& n = held.data<int64_t>()[b];
      if (n < 2 * window) continue;
      for (const Tensor& cache : {keys, values}) {
        const Tensor newest = cache.slice(0, b, 1).slice(2, window + 1, window - 1);
        place(cache, b, 0, newest);
      }
      n = window - 1;
    }
    append_row(keys, k, held);
    append_row(values, v, held);
    for (int64_t b = 0; b < batch(); ++b) {
      ++held.data<int64_t>()[b];
      if (length(b) > sinks) continue;
      place(*sink_keys, b, length(b) - 1, k.detach().slice(0, b, 1));
      place(*sink_values, b, length(b) - 1, v.detach().slice(0, b, 1));
    }
  }

  // The rows at which the `k` keys of each sequence's newest query begin, i64 [batch].
  Tensor first_rows(int64_t k) {
    Tensor first = held.clone();
    for (int64_t b = 0; b < batch(); ++b) {
      int64_t& at = first.data<int64_t>()[b];
      at = std::max<int64_t>(at - k, 0);
      if (sinks == 0 || length(b) <= k) continue;
      place(keys, b, at, sink_keys->slice(0, b, 1));
      place(values, b, at, sink_values->slice(0, b, 1));
    }
    return first;
  }

  void check_values(const std::vector<NamedTensor>& tensors, int64_t tokens,
                    const std::string& source) const override {
    const int64_t rows = named(tensors, "held", source).data<int64_t>()[0];
    check(rows >= std::min(tokens, window) && rows <= std::min(tokens, 2 * window), source,
          ": held is ", rows, " for ", tokens, " tokens and a window of ", window);
  }

  int64_t window, sinks;
  Tensor &keys, &values;                                // [batch, G, 2 window, d]
  Tensor& held;                                         // i64 [batch] rows in use
  Tensor *sink_keys = nullptr, *sink_values = nullptr;  // [batch, G, sinks, d]

 private:
  static void place(const Tensor& cache, int64_t b, int64_t at, const Tensor& rows) {
    if (rows.numel() == 0) return;
    copy_into(cache.slice(0, b, 1).slice(2, at, rows.dim(2)), rows);
  }
};

class Recent : public Attention {
 public:
  Recent(Init&, const AttentionShape& shape, const RecentConfig& config)
      : k_(config.k), sinks_(config.sinks), shape_(shape) {
    kept({});  // throws for a k that is not above the number of sinks
  }

  AttentionTraits traits() const override {
    return {.causal = shape_.causal,
            .bidirectional = !shape_.causal,
            .linear = true,
            .sparse = true,
            .incremental = shape_.causal,
            .groups = true};
  }

  std::unique_ptr<AttentionState> make_state(const StateRequest& r) const override {
    check(shape_.causal, "attention: an encoder is not decoded token by token");
    const int64_t window = std::min(kept(r.options), shape_.max_positions);
    return std::make_unique<RecentState>(r, shape_, window, sinks_);
  }

  Tensor step(const AttentionInput& in, AttentionState& state) const override {
    auto& cache = dynamic_cast<RecentState&>(state);
    const int64_t k = kept(in.options);
    check(k <= cache.window || cache.window == shape_.max_positions, "recent: k = ", k,
          " in a step, but the state was made for ", cache.window);
    cache.append(in.k, in.v);
    const Tensor first = cache.first_rows(k);
    return merge_heads(cached_attention(in.q, cache.keys, cache.values, first, cache.held));
  }

  Tensor forward(const AttentionInput& in) override {
    int64_t B = in.q.dim(0), H = in.q.dim(1), T = in.q.dim(2);
    if (in.state) {
      dynamic_cast<RecentState&>(*in.state).fill(in.slot, in.k, in.v, in.visible.lengths);
    }
    int64_t k = kept(in.options);
    CostScope part("attention");
    FlatCsr csr = recent_keys(B, H, T, k, sinks_, in.visible, in.q.device());
    show_mask(in, csr);
    if (!in.options.dense_path) return merge_heads(sparse_attention(in.q, in.k, in.v, csr));
    const Tensor p = masked_softmax(group_matmul(in.q, in.k, true), csr_to_mask(csr),
                                    1 / std::sqrt(double(in.q.dim(-1))));
    return merge_heads(group_matmul(p, in.v, false));
  }

 private:
  int64_t kept(const RuntimeOptions& options) const {
    const int64_t k = options.k ? options.k : k_;
    check(sinks_ < k, "recent: sinks ", sinks_, " must be below k ", k);
    return k;
  }

  int64_t k_, sinks_;
  AttentionShape shape_;
};
const RegisterAttention<Recent, RecentConfig> registration("recent");

}  // namespace
}  // namespace brine::nn
